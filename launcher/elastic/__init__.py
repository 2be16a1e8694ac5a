"""Elastic jobs (`--nnodes MIN:MAX`): nodes come and go while the job goes on."""
