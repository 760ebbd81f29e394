"""Other libraries' names and interfaces, answered by Octet. None is imported unasked."""
