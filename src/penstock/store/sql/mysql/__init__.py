"""Store on MySQL and MariaDB."""
