"""Settings of the shop."""

import os

INSTALLED_APPS = ["shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("DATABASE", "shop.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
