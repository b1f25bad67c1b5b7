"""From YAML files to generated Python."""
