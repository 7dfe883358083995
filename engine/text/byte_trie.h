// A trie of tokens, which finds the tokens that a text begins with.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trainctl {

/// A trie of the bytes of tokens: the children of a node are a chain of siblings, except for the root's, a table.
class ByteTrie {
 public:
  ByteTrie() { roots_.fill(-1); }

  void add(std::string_view text, int32_t id) {
    int32_t node = -1;
    for (const char c : text) node = child_or_new(node, static_cast<uint8_t>(c));
    if (node >= 0) nodes_[static_cast<size_t>(node)].id = id;
  }
  /// Calls `use(bytes, id)` for each token that `text` begins with, the shortest first.
  template <class Use>
  void prefixes(std::string_view text, Use use) const {
    int32_t node = -1;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) return;
      if (nodes_[static_cast<size_t>(node)].id >= 0) use(i + 1, nodes_[static_cast<size_t>(node)].id);
    }
  }

 private:
  struct Node {
    int32_t id = -1, child = -1, sibling = -1;
    uint8_t byte = 0;
  };
  int32_t first_child(int32_t node, uint8_t byte) const {
    return node < 0 ? roots_[byte] : nodes_[static_cast<size_t>(node)].child;
  }
  int32_t child(int32_t node, uint8_t byte) const {
    int32_t at = first_child(node, byte);
    while (at >= 0 && nodes_[static_cast<size_t>(at)].byte != byte) at = nodes_[static_cast<size_t>(at)].sibling;
    return at;
  }
  int32_t child_or_new(int32_t node, uint8_t byte) {
    if (const int32_t at = child(node, byte); at >= 0) return at;
    const auto made = static_cast<int32_t>(nodes_.size());
    nodes_.push_back({-1, -1, first_child(node, byte), byte});
    (node < 0 ? roots_[byte] : nodes_[static_cast<size_t>(node)].child) = made;
    return made;
  }

  std::vector<Node> nodes_;
  std::array<int32_t, 256> roots_;
};

}  // namespace trainctl
