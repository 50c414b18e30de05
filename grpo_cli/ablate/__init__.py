"""Many arms and seeds as one experiment: plan, run, watch, mirror. One use case, many files.

asked     options with a syntax of their own
plan      what will be compared, and what that design can see     (no torch)
checks    arms that cannot differ
history   what earlier runs say about time, tokens and seed noise
identify  hashes of model and verifier, for the plan
store     plan.json
show      the plan as a table
layout    how many processes, measured by `calibrate`
worker    a process that trains some of the cells                 (torch)
run       workers, signals, the end
watch     the live table
finish    what a person sees, and the comparison at the end
lookon    the table in another terminal
mirror    the MLflow parent and its children                      (mlflow)
"""
