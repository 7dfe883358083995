// The part of a checkpoint that one rank writes: the bytes of its safetensors file, as they are laid out in memory
// before they are on disk.
#include "engine/train/checkpoint/state_image.h"

#include <map>

#include "engine/base/error.h"
#include "engine/ops/optimizer_def.h"
#include "engine/runtime/stored_ranges.h"
#include "engine/train/checkpoint/manifest.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

/// A box of elements, which are consecutive in the arena.
struct Stored {
  SafetensorsEntry entry;
  int64_t offset = 0;  ///< in the arena
};

std::vector<Stored> stored_boxes(const Program& program, StateShare share) {
  std::vector<Stored> all;
  for (const StoredRange& range : stored_ranges(program)) {
    const bool is_local = share == StateShare::local;
    if (is_local && !range.is_fresh) continue;
    if (share == StateShare::weights && range.slot != kWeightSlot && range.slot != kStateSlot &&
        range.slot != kAverageSlot)
      continue;
    if (share == StateShare::weights && range.replica > 0) continue;
    const int64_t first = is_local ? range.first : range.own_first, count = is_local ? range.count : range.own_count;
    int64_t at = is_local ? range.offset : range.own_offset();
    for (const Box& box : boxes_of(*range.variable, first, count)) {
      Stored stored;
      stored.entry.name = piece_key(range.variable->name, range.stored_slot(), range.variable->global_shape, box);
      stored.entry.type = stored_type(range.dtype);
      stored.entry.shape = box.shape;
      stored.offset = at;
      at += num_elements(box.shape) * byte_size(range.dtype);
      all.push_back(std::move(stored));
    }
  }
  return all;
}

}  // namespace

StateImage::StateImage(const Program& program, StateShare share) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, int64_t> offsets;
  for (Stored& stored : stored_boxes(program, share)) {
    offsets[stored.entry.name] = stored.offset;
    entries.push_back(std::move(stored.entry));
  }
  if (entries.empty()) return;
  const SafetensorsHeader header = lay_out(std::move(entries));
  head_ = safetensors_head(header);
  bytes_ = header.data_at + header.data_bytes();
  for (const SafetensorsEntry& e : header.entries)
    copies_.push_back({offsets.at(e.name), header.data_at + e.begin, e.bytes()});
}

int64_t state_image_bytes(const Program& program) {
  std::vector<SafetensorsEntrySize> entries;
  for (const StoredRange& range : stored_ranges(program)) {
    if (range.own_count == 0) continue;
    const Variable& variable = *range.variable;
    const int64_t name_bytes = header_name_bytes(variable.name);
    for (Box& box : boxes_of(variable, range.own_first, range.own_count))
      entries.push_back(
          {.name_bytes = name_bytes + piece_key_bytes_after_name(range.stored_slot(), variable.global_shape, box),
           .type = stored_type(range.dtype),
           .shape = std::move(box.shape)});
  }
  return entries.empty() ? 0 : safetensors_bytes(std::move(entries));
}

}  // namespace trainctl
