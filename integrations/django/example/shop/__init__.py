"""A shop of Django: an order is sent when its row is committed, and a listener bills it.

In the folder example, in two shells:

    ogive up
    export DJANGO_SETTINGS_MODULE=shop.settings
    python -m django migrate --run-syncdb
    python -m shop.orders 4711 20
    ogive run shop.listeners
"""
