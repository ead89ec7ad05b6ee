"""Objects of a scene: primitive shapes, meshes, and parts with joints of their own."""

from sim.objects.base import Object
from sim.objects.drawer import Drawer
from sim.objects.files import Mesh, Model
from sim.objects.primitives import Ball, Box, Cylinder, Socket, Tray

__all__ = ["Ball", "Box", "Cylinder", "Drawer", "Mesh", "Model", "Object", "Socket", "Tray"]
