"""The HTML page of a forward pass: a traced pass, its sections, and a file with the sections that fit."""
