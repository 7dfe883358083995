// Finds the blocks that a network repeats, and folds a job to fewer of them.
#include "engine/search/cuts/repeats.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/plan/axes/sharding_facts.h"

namespace trainctl {
namespace {

/// "h.3.fc" is block 3 of "h.", layer "fc".
struct Numbered {
  std::string prefix, rest;
  int64_t number = -1;  ///< -1: its name has none
};

Numbered numbered(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const size_t end = name.find('.', dot + 1);
    if (end == std::string::npos) break;
    const std::string digits = name.substr(dot + 1, end - dot - 1);
    const bool number = !digits.empty() && digits.size() < 7 &&
                        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (number) return {name.substr(0, dot + 1), name.substr(end + 1), std::stoll(digits)};
  }
  return {name, "", -1};
}

/// A name as seen from a block: it belongs to this block, to the one before, or to neither.
std::string seen_from(const Numbered& block, const std::string& name) {
  const Numbered other = numbered(name);
  if (other.number < 0 || other.prefix != block.prefix) return name;
  return block.prefix + "<" + std::to_string(block.number - other.number) + ">." + other.rest;
}

/// Consecutive layers with one number. Equal blocks read the same, but the first of a run may read from outside.
struct Block {
  Numbered at;
  size_t begin = 0, end = 0;  // layers
};

/// True if two blocks have the same layers: types, fields, and inputs as seen from each block. `first`: block a is the
/// first of its run, which may read from outside of the run.
bool same_layers(const std::vector<LayerSpec>& network, const Block& a, const Block& b, bool first) {
  if (a.end - a.begin != b.end - b.begin) return false;
  for (size_t i = 0; i < a.end - a.begin; ++i) {
    const LayerSpec &x = network[a.begin + i], &y = network[b.begin + i];
    if (numbered(x.name).rest != numbered(y.name).rest || x.type != y.type || x.inputs.size() != y.inputs.size())
      return false;
    Attrs own = x.attrs, other = y.attrs;
    if (own.has("share")) own.set("share", seen_from(a.at, own.text("share")));
    if (other.has("share")) other.set("share", seen_from(b.at, other.text("share")));
    if (!(own == other)) return false;
    for (size_t k = 0; k < x.inputs.size(); ++k) {
      const std::string from_a = seen_from(a.at, x.inputs[k]), from_b = seen_from(b.at, y.inputs[k]);
      const bool outside_a = numbered(x.inputs[k]).prefix != a.at.prefix;
      if (from_a != from_b && !(first && outside_a)) return false;
    }
  }
  return true;
}

std::vector<Block> blocks_of(const std::vector<LayerSpec>& network) {
  std::vector<Block> blocks;
  for (size_t l = 0; l < network.size(); ++l) {
    const Numbered at = numbered(network[l].name);
    if (at.number < 0) continue;
    if (!blocks.empty() && blocks.back().end == l && blocks.back().at.prefix == at.prefix &&
        blocks.back().at.number == at.number)
      blocks.back().end = l + 1;
    else
      blocks.push_back({at, l, l + 1});
  }
  return blocks;
}

}  // namespace

Repeats find_repeats(const std::vector<LayerSpec>& network) {
  Repeats repeats;
  for (const LayerSpec& layer : network) repeats.places.push_back({.pattern = layer.name});
  const std::vector<Block> blocks = blocks_of(network);
  std::set<std::string> used;  // prefixes; a second run of the same would have the same patterns
  for (size_t first = 0; first < blocks.size();) {
    size_t last = first + 1;
    for (; last < blocks.size(); ++last) {
      const Block &before = blocks[last - 1], &next = blocks[last];
      const bool follows =
          next.begin == before.end && next.at.prefix == before.at.prefix && next.at.number == before.at.number + 1;
      if (!follows || !same_layers(network, before, next, last - 1 == first)) break;
    }
    const std::string& prefix = blocks[first].at.prefix;
    if (last - first > 1 && used.insert(prefix).second) {
      const int run = static_cast<int>(repeats.blocks.size());
      repeats.blocks.push_back(static_cast<int>(last - first));
      repeats.prefixes.push_back(prefix);
      for (size_t b = first; b < last; ++b)
        for (size_t l = blocks[b].begin; l < blocks[b].end; ++l)
          repeats.places[l] = {prefix + "*." + numbered(network[l].name).rest, run, static_cast<int>(b - first)};
    }
    first = last;
  }
  return repeats;
}

Repeats find_repeats(const JobSpec& job) {
  Repeats repeats = find_repeats(job.network);
  std::set<int> uneven;
  std::map<std::string, const void*> reported[2];  // by pattern of layers: the rule of the first of them
  for (size_t l = 0; l < job.network.size(); ++l) {
    const BlockPlace& place = repeats.places[l];
    if (place.run < 0) continue;
    const void* rules[] = {rule_for(job.parallel.strategies, job.network[l].name, false),
                           rule_for(job.parallel.recompute, job.network[l].name, false)};
    for (size_t k = 0; k < 2; ++k)
      if (reported[k].try_emplace(place.pattern, rules[k]).first->second != rules[k]) uneven.insert(place.run);
  }
  for (size_t l = 0; l < job.network.size(); ++l)
    if (uneven.contains(repeats.places[l].run)) repeats.places[l] = {.pattern = job.network[l].name};
  for (int run : uneven) repeats.blocks[static_cast<size_t>(run)] = 1;  // nothing is folded
  return repeats;
}

Folded fold(const JobSpec& job, int most) {
  Repeats repeats = find_repeats(job);
  std::vector<int> kept;
  for (int blocks : repeats.blocks) kept.push_back(std::min(blocks, most));
  return fold(job, std::move(repeats), std::move(kept));
}

Folded fold(const JobSpec& job, Repeats repeats, std::vector<int> kept) {
  Folded folded{job, std::move(repeats), std::move(kept)};
  const Repeats& whole = folded.repeats;
  // A layer that read the last block reads the last one that is left.
  std::vector<int> first_number(whole.blocks.size(), 0);
  for (size_t l = 0; l < job.network.size(); ++l) {
    const BlockPlace& place = whole.places[l];
    if (place.run >= 0 && place.block == 0)
      first_number[static_cast<size_t>(place.run)] = static_cast<int>(numbered(job.network[l].name).number);
  }
  const auto in_kept = [&](const std::string& name) {
    const Numbered at = numbered(name);
    for (size_t run = 0; run < whole.prefixes.size(); ++run) {
      if (at.number < 0 || at.prefix != whole.prefixes[run]) continue;
      const int64_t block = at.number - first_number[run];
      if (block != whole.blocks[run] - 1) continue;
      return at.prefix + std::to_string(first_number[run] + folded.kept[run] - 1) + "." + at.rest;
    }
    return name;
  };
  std::vector<LayerSpec> network;
  std::vector<BlockPlace> places;
  for (size_t l = 0; l < job.network.size(); ++l) {
    const BlockPlace& place = whole.places[l];
    if (place.run >= 0 && place.block >= folded.kept[static_cast<size_t>(place.run)]) continue;
    LayerSpec layer = job.network[l];
    if (place.run < 0) {
      for (std::string& input : layer.inputs) input = in_kept(input);
    } else {
      // The first block of a run may read the last one of another run.
      for (std::string& input : layer.inputs)
        if (numbered(input).prefix != whole.prefixes[static_cast<size_t>(place.run)]) input = in_kept(input);
    }
    network.push_back(std::move(layer));
    places.push_back(place);
  }
  const auto keep_outputs = [&](LossSpec& loss) {
    loss.input = in_kept(loss.input);
    for (std::string& input : loss.inputs) input = in_kept(input);
  };
  if (folded.job.loss) keep_outputs(*folded.job.loss);
  for (LossSpec& loss : folded.job.auxiliary_losses) keep_outputs(loss);
  folded.job.network = std::move(network);
  folded.repeats.places = std::move(places);
  folded.job.print.tensors.clear();
  return folded;
}

}  // namespace trainctl
