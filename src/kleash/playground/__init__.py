"""The kitchen to be turned by hand: a page with three dials, and the dial turning as a moving picture."""
