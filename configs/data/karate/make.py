#!/usr/bin/env python3
"""Writes train.npz and test.npz beside this script: the karate club of W. W. Zachary, An Information Flow Model for Conflict and Fission
in Small Groups (1977). One sample each: the features and labels of all members, and the friendships as edges in both directions."""

import pathlib

import numpy as np

FRIENDS = """2-1 3-1 3-2 4-1 4-2 4-3 5-1 6-1 7-1 7-5 7-6 8-1 8-2 8-3 8-4 9-1 9-3 10-3 11-1 11-5 11-6 12-1 13-1 13-4 14-1 14-2 14-3 14-4
17-6 17-7 18-1 18-2 20-1 20-2 22-1 22-2 26-24 26-25 28-3 28-24 28-25 29-3 30-24 30-27 31-2 31-9 32-1 32-25 32-26 32-29 33-3 33-9 33-15
33-16 33-19 33-21 33-23 33-24 33-30 33-31 33-32 34-9 34-10 34-14 34-15 34-16 34-19 34-20 34-21 34-23 34-24 34-27 34-28 34-29 34-30 34-31
34-32 34-33"""
FIRST_CLUB = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22]
LABELLED = [1, 5, 30, 34]  # two of each club

pairs = np.array([[int(member) - 1 for member in pair.split("-")] for pair in FRIENDS.split()])
nodes = 34
ends = np.concatenate([pairs, pairs[:, ::-1], np.stack([np.arange(nodes)] * 2, 1)])  # both directions, and each node itself
source, target = ends[:, 0].astype(np.int32), ends[:, 1].astype(np.int32)
degree = np.bincount(target, minlength=nodes)
weight = (1 / np.sqrt(degree[source] * degree[target])).astype(np.float32)
club = np.array([0 if node + 1 in FIRST_CLUB else 1 for node in range(nodes)], np.int32)
has_label = np.isin(np.arange(nodes) + 1, LABELLED)

folder = pathlib.Path(__file__).resolve().parent
for name, visible in (("train", has_label), ("test", ~has_label)):
    np.savez(folder / f"{name}.npz", data=np.eye(nodes, dtype=np.float32)[None], source=source[None], target=target[None],
             weight=weight[None, :, None], label=np.where(visible, club, -1).astype(np.int32)[None])
