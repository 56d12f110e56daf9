"""HTML reports and SVG plots."""
