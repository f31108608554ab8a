"""Plugins of the kubelet: credential providers, and the messages of the PodResources API."""
