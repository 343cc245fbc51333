"""The command line: thin, no decisions here. Each command is a module; `main` puts them together."""
