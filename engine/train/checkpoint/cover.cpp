// Selects pieces of images that together are the state exactly once; replicas store parts of it several times.
#include "engine/train/checkpoint/cover.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "engine/train/checkpoint/manifest.h"
#include "engine/train/checkpoint/resume_checks.h"
#include "engine/train/checkpoint/tiling.h"

namespace trainctl {
namespace {

using Key = std::pair<std::string, std::string>;  // tensor, slot

struct Candidate {
  size_t image = 0;
  const SafetensorsEntry* entry = nullptr;
  Box box;
};

int64_t shared_elements(const Box& a, const Box& b) {
  int64_t elements = 1;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    elements *= std::max<int64_t>(0, end - begin);
  }
  return elements;
}

}  // namespace

Cover cover_state(const PlannedJob& job, const std::vector<std::vector<SafetensorsEntry>>& images) {
  const std::map<Key, Shape> state = kept_state(job);
  std::map<Key, std::vector<Candidate>> candidates;
  for (size_t i = 0; i < images.size(); ++i)
    for (const SafetensorsEntry& entry : images[i]) {
      const PieceName piece = parse_piece_key(entry.name);
      const auto wanted = state.find({piece.name, piece.slot});
      if (wanted == state.end()) continue;
      const Box box = piece.box ? *piece.box : whole_box(wanted->second);
      if (box.shape.size() == wanted->second.size()) candidates[wanted->first].push_back({i, &entry, box});
    }
  Cover cover;
  cover.pieces.resize(images.size());
  for (const auto& [key, shape] : state) {
    std::vector<Candidate>& of_key = candidates[key];
    std::stable_sort(of_key.begin(), of_key.end(), [](const Candidate& a, const Candidate& b) {
      return num_elements(a.box.shape) > num_elements(b.box.shape);
    });
    std::vector<const Box*> taken;
    int64_t elements = 0;
    bool is_cut_alike = true;
    for (const Candidate& one : of_key) {
      int64_t known = 0;
      for (const Box* box : taken) known += shared_elements(one.box, *box);
      is_cut_alike = is_cut_alike && (known == 0 || known == num_elements(one.box.shape));
      if (known > 0) continue;
      taken.push_back(&one.box);
      elements += num_elements(one.box.shape);
      cover.pieces[one.image].push_back(one.entry->name);
      cover.bytes += one.entry->bytes();
    }
    const bool is_whole = is_cut_alike && elements == num_elements(shape);
    if (!is_whole && cover.missing.empty()) cover.missing = key.first + ":" + key.second;
  }
  return cover;
}

std::vector<std::byte> image_of(std::span<const std::byte> image, const std::vector<std::string>& pieces) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(image.data()), image.size());
  const SafetensorsHeader from = parse_safetensors_header(bytes, static_cast<int64_t>(bytes.size()), "a rank's state");
  const std::set<std::string> wanted(pieces.begin(), pieces.end());
  std::map<std::string, const SafetensorsEntry*> sources;
  std::vector<SafetensorsEntry> entries;
  for (const SafetensorsEntry& entry : from.entries) {
    if (!wanted.contains(entry.name)) continue;
    sources[entry.name] = &entry;
    entries.push_back(entry);
  }
  if (entries.empty()) return {};
  const SafetensorsHeader header = lay_out(std::move(entries));
  const std::string head = safetensors_head(header);
  std::vector<std::byte> to(static_cast<size_t>(header.data_at + header.data_bytes()));
  std::memcpy(to.data(), head.data(), head.size());
  for (const SafetensorsEntry& entry : header.entries)
    std::memcpy(to.data() + header.data_at + entry.begin, image.data() + from.data_at + sources.at(entry.name)->begin,
                static_cast<size_t>(entry.bytes()));
  return to;
}

}  // namespace trainctl
