"""Which recipe to start from: questions, evidence with its sources, rules, text. No torch.

`rules.advise` maps answers to advice; `evidence`, `misread` and `missing` are the tables it
points into. The facts come from the papers named in each row; nothing here was measured by this
project.
"""
