"""One module per section; ``registry`` says what a section is."""
