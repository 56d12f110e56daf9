"""What a bundle is measured by, and the measurements themselves."""
