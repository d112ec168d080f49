"""What is a derivative without derivatives? Directions, the arithmetic of Eq. 4, the primitive around a function."""
