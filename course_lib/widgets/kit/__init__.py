"""What all pictures share: colours and patterns, one writer of SVG and HTML, pages, cards."""
