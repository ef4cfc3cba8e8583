"""The platforms of this package: the YAML files beside this one."""
