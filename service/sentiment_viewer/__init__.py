"""The viewer: a web page that shows explanations, served live or saved as one file that needs no network."""
