"""Commands of the command line that need no room above frontends/."""
