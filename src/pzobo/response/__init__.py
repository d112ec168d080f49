"""What can be done with a response that is measured whole? The matrix J = dr/dx, and steps by it in a box."""
