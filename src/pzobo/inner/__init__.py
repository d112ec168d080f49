"""What is the inner problem? One step of g, its second derivatives, and the problem as a function of x or of z."""
