"""What more than one folder of tests needs: projects in temporary folders, servers, plugins, kills."""
