// Data sets around another one: a cache, and what takes the place of broken samples.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// In the memory of the process, or in a file of the folder TMPDIR, which no other process sees and which is gone with
/// the process.
enum class CachePlace : uint8_t { memory, disk };

/// Bytes of all samples.
int64_t cached_bytes(const Dataset& set);

/// Keeps each sample after its first read, as it comes from `inner`. Throws EnvError if the disk has too little room.
/// `shared`: an empty file in memory (memfd) that the ranks of a host have been given, for CachePlace::memory: what one
/// of them has read no other one reads. It has no name, so nothing is left behind when they are killed. It stays the
/// caller's. -1: each process keeps its own.
std::unique_ptr<Dataset> keep_samples(std::unique_ptr<Dataset> inner, CachePlace place, int shared = -1);

/// dataset.on_error: skip. A sample that cannot be read (EnvError) is counted, and another one, which depends on the
/// seed and the sample's number alone, takes its place in every field: so every rank reads all fields of each sample.
std::unique_ptr<Dataset> replace_broken(std::unique_ptr<Dataset> inner, uint64_t seed);

}  // namespace trainctl
