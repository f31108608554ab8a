"""Volumes with files from API objects: secret, configMap, downwardAPI, projected."""
