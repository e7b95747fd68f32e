"""The admin, and one view."""

from django.contrib import admin
from django.urls import path
from orders.views import buy

urlpatterns = [path("admin/", admin.site.urls), path("buy/<str:item>/", buy)]
