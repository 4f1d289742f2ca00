"""The HTML page of a forward pass: `collect` the numbers, `write_page` packs those that fit."""
