"""A Django project in one file that commits each order and its event in one transaction, with transaction.atomic().

    python examples/django_orders.py

For PostgreSQL, change DATABASES and the URL of the outbox.
"""

import json
import sys
import tempfile
from pathlib import Path

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path

import penstock

folder = tempfile.TemporaryDirectory(prefix="django-orders-")
database = Path(folder.name) / "shop.db"
settings.configure(
    ALLOWED_HOSTS=["testserver"],  # the host that Django's test client names
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": database}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)
django.setup()
outbox = penstock.connect(f"sqlite:///{database}")


class Order(models.Model):
    customer = models.CharField(max_length=100)
    amount = models.IntegerField()

    class Meta:
        app_label = "shop"


class OverLimit(Exception):
    pass


def place_order(request: HttpRequest) -> JsonResponse:
    asked = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(customer=asked["customer"], amount=asked["amount"])
            outbox.emit(
                "order.placed",
                {"order": order.pk, "amount": order.amount},
                ordering_key=f"customer/{order.customer}",
                connection=connection,
            )
            if order.amount > 1_000:
                raise OverLimit
    except OverLimit:
        return JsonResponse({"error": "over the limit: neither the order nor its event exists"}, status=422)
    return JsonResponse({"order": order.pk}, status=201)


urlpatterns = [path("orders", place_order)]


def main() -> None:
    outbox.store.initialise()
    with connection.schema_editor() as editor:  # a project with apps uses migrations
        editor.create_model(Order)
    client = Client()
    for customer, amount in (("ada", 42), ("bob", 5_000)):
        order = {"customer": customer, "amount": amount}
        response = client.post("/orders", order, content_type="application/json")
        sys.stdout.write(f"{response.status_code} {response.content.decode()}\n")
    sys.stdout.write(f"orders: {[order.customer for order in Order.objects.all()]}\n")
    for record in outbox.store.find(penstock.Selection(everything=True)).records:
        sys.stdout.write(f"{record.event_type} {record.state} {record.payload.decode()}\n")
    connection.close()
    outbox.close()
    folder.cleanup()


if __name__ == "__main__":
    main()


# Output:
# 201 {"order": 1}
# 422 {"error": "over the limit: neither the order nor its event exists"}
# orders: ['ada']
# order.placed PENDING {"order":1,"amount":42}
