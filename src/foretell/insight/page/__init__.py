"""The HTML page of a forward pass: a traced pass, its sections, and the file that holds those that fit."""
