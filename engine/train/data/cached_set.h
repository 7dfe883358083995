// Data sets that wrap another one: a cache, and a set that replaces broken samples.
#pragma once

#include <memory>

#include "engine/train/data/dataset.h"

namespace trainctl {

/// memory: in the memory of the process. disk: in a file in the folder TMPDIR that no other process sees, and that
/// disappears with the process.
enum class CachePlace : uint8_t { memory, disk };

/// Bytes that a cache of all samples of the set needs.
int64_t cached_bytes(const Dataset& set);

/// Keeps each sample after its first read, as `inner` gives it. Throws EnvError if the disk has too little room.
/// `shared` is for CachePlace::memory: an empty file in memory (memfd) that all ranks of a host have been given. A
/// sample that one of these ranks has read is then not read again by another. The memfd has no name, so nothing is left
/// behind when the ranks are killed. The caller keeps the ownership of the descriptor. With -1 each process has a cache
/// of its own.
std::unique_ptr<Dataset> keep_samples(std::unique_ptr<Dataset> inner, CachePlace place, int shared = -1);

/// dataset.on_error: skip. A sample that cannot be read (EnvError) is counted, and another sample takes its place in
/// every field. The choice of that sample depends only on the seed and the number of the broken one. All ranks must
/// therefore read all fields of each sample.
std::unique_ptr<Dataset> replace_broken(std::unique_ptr<Dataset> inner, uint64_t seed);

}  // namespace trainctl
