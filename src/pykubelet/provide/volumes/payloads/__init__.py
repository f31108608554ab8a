"""Volumes whose files come from API objects: secret, configMap, downwardAPI, projected."""
