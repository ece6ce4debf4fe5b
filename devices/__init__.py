"""What a target and a device are: names, probing, registration, exclusive use."""
