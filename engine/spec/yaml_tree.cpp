// Builds the tree from yaml-cpp's events rather than from its nodes: the handler sees each level as it opens, so it
// can stop at a limit before the parser recurses deeper.
#include "engine/spec/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "engine/base/error.h"

namespace trainctl {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

/// yaml-cpp counts bytes from 0; users count characters from 1.
class Lines {
 public:
  Lines(std::string_view text, std::string file) : text_(text), file_(std::move(file)), starts_{0} {
    for (size_t i = 0; i < text.size(); ++i)
      if (text[i] == '\n') starts_.push_back(i + 1);
  }

  SourcePos at(size_t line, size_t byte_column) const {
    if (line >= starts_.size()) return {file_, static_cast<int>(starts_.size()), 1};
    const std::string_view rest = text_.substr(starts_[line]).substr(0, byte_column);
    return {
        file_, static_cast<int>(line) + 1,
        1 + static_cast<int>(std::count_if(rest.begin(), rest.end(), [](char c) { return !continues_character(c); }))};
  }

  SourcePos at(const YAML::Mark& mark) const {
    return mark.is_null()
               ? at(0, 0)
               : at(static_cast<size_t>(std::max(0, mark.line)), static_cast<size_t>(std::max(0, mark.column)));
  }

  std::string_view line(const YAML::Mark& mark) const {
    const auto number = static_cast<size_t>(std::max(0, mark.line));
    if (mark.is_null() || number >= starts_.size()) return {};
    const std::string_view rest = text_.substr(starts_[number]);
    return rest.substr(0, rest.find('\n'));
  }

  SourcePos at_byte(size_t offset) const {
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), offset);
    const size_t line = static_cast<size_t>(next - starts_.begin()) - 1;
    return at(line, offset - starts_[line]);
  }

 private:
  std::string_view text_;
  std::string file_;
  std::vector<size_t> starts_;
};

int height(const YamlNode& node) {
  int most = 0;
  for (const YamlNode& item : node.items) most = std::max(most, height(item));
  for (const YamlNode::Entry& entry : node.entries) most = std::max(most, height(entry.value));
  return most + 1;
}

int count(const YamlNode& node) {
  int nodes = 1;
  for (const YamlNode& item : node.items) nodes += count(item);
  for (const YamlNode::Entry& entry : node.entries) nodes += count(entry.value);
  return nodes;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const Lines& lines) : lines_(lines) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) fail(mark, "a job file holds one YAML document; a second one starts here");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.pos = lines_.at(mark);
    node.text = null_word(mark);
    add(std::move(node), anchor, mark);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_tag(mark, tag);
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.pos = lines_.at(mark);
    node.quoted = tag == "!";
    node.text = value;
    const bool says_null = value == "null" || value == "~" || value == "Null" || value == "NULL" || value.empty();
    if (!node.quoted && says_null) node.kind = YamlNode::Kind::null;
    add(std::move(node), anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) fail(mark, "this alias is inside the value that it refers to");
    if (static_cast<int>(open_.size()) + height(known->second) > kMaxYamlDepth) too_deep(mark);
    spend(count(known->second), mark);
    add_to_parent(YamlNode(known->second), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::list, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::map, mark, tag, anchor);
  }
  void OnMapEnd() override {
    merge(open_.back().node);
    close();
  }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    bool key_read = false;  ///< map: the last entry waits for its value
  };

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message, const std::string& hint = {}) const {
    throw SpecError(lines_.at(mark), "", message, hint);
  }
  [[noreturn]] void too_deep(const YAML::Mark& mark) const {
    fail(mark, "nested more than " + std::to_string(kMaxYamlDepth) + " levels deep");
  }

  /// The null that was written, "null" or "~"; "" where there is nothing.
  std::string null_word(const YAML::Mark& mark) const {
    const std::string_view line = lines_.line(mark);
    const std::string_view rest = line.substr(std::min(line.size(), static_cast<size_t>(std::max(0, mark.column))));
    for (const char* word : {"~", "null", "Null", "NULL"})
      if (rest.starts_with(word)) return word;
    return "";
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (tag.empty() || tag == "?" || tag == "!") return;
    fail(mark, "YAML tags ('" + tag + "') have no meaning in a job file", "leave the tag out");
  }

  /// Aliases copy the anchored value; the budget keeps nested ones from growing without bound.
  void spend(int nodes, const YAML::Mark& mark) {
    spent_ += nodes;
    if (spent_ > kMaxYamlNodes)
      fail(mark, "the file holds more than " + std::to_string(kMaxYamlNodes) + " values once its aliases are expanded");
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    refuse_tag(mark, tag);
    if (static_cast<int>(open_.size()) >= kMaxYamlDepth) too_deep(mark);
    spend(1, mark);
    Open opened;
    opened.node.kind = kind;
    opened.node.pos = lines_.at(mark);
    opened.anchor = anchor;
    opened.mark = mark;
    open_.push_back(std::move(opened));
  }

  void close() {
    Open closed = std::move(open_.back());
    open_.pop_back();
    remember(closed.node, closed.anchor, closed.mark);
    add_to_parent(std::move(closed.node), closed.mark);
  }

  void add(YamlNode node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    spend(1, mark);
    remember(node, anchor, mark);
    add_to_parent(std::move(node), mark);
  }

  void remember(const YamlNode& node, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (!anchor) return;
    spend(count(node), mark);
    anchors_.insert_or_assign(anchor, node);
  }

  bool wants_key() const { return !open_.empty() && open_.back().node.is_map() && !open_.back().key_read; }

  void add_to_parent(YamlNode node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().node.is_list()) {
      open_.back().node.items.push_back(std::move(node));
    } else if (wants_key()) {
      if (!node.is_scalar()) fail(mark, "a key must be a name, not " + describe(node));
      if (open_.back().node.find(node.text)) fail(mark, "the key '" + node.text + "' is given twice");
      open_.back().node.entries.push_back({node.text, node.pos, {}});
      open_.back().key_read = true;
    } else {
      YamlNode::Entry& entry = open_.back().node.entries.back();
      // Nothing after the colon: the key is the best position to report.
      if (node.is_null() && node.text.empty()) node.pos = entry.key_pos;
      entry.value = std::move(node);
      open_.back().key_read = false;
    }
  }

  /// `<<: *defaults`: adds the keys of another mapping (or of several, the first wins) that this one lacks.
  void merge(YamlNode& map) {
    const auto at = std::find_if(map.entries.begin(), map.entries.end(), [](const auto& e) { return e.key == "<<"; });
    if (at == map.entries.end()) return;
    const YamlNode::Entry merged = std::move(*at);
    map.entries.erase(at);
    std::vector<YamlNode> sources;
    if (merged.value.is_list())
      sources = merged.value.items;
    else
      sources.push_back(merged.value);
    for (const YamlNode& source : sources) {
      if (!source.is_map()) throw SpecError(merged.key_pos, "", "'<<' merges mappings, not " + describe(source));
      for (const YamlNode::Entry& entry : source.entries)
        if (!map.find(entry.key)) map.entries.push_back(entry);
    }
  }

  const Lines& lines_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  int spent_ = 0;
  int documents_ = 0;
};

/// Bytes of the UTF-8 character at the front of `text`; 0 if it is not valid.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 || lead == '\t' || lead == '\n' || lead == '\r' ? 1 : 0;
  const size_t length = lead >= 0xF5 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i)
    if (!continues_character(text[i])) return 0;
  if (lead == 0xE0 && byte(1) < 0xA0) return 0;   // overlong
  if (lead == 0xED && byte(1) >= 0xA0) return 0;  // surrogates
  if (lead == 0xF0 && byte(1) < 0x90) return 0;   // overlong
  if (lead == 0xF4 && byte(1) >= 0x90) return 0;  // past U+10FFFF
  return length;
}

void demand_text(std::string_view text, const Lines& lines) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text.substr(i));
    if (length == 0)
      throw SpecError(lines.at_byte(i), "", "this byte is not UTF-8 text",
                      "a job file is YAML text; `trainctl init mlp` writes one");
    i += length;
  }
}

/// yaml-cpp reports where it failed; this names the most common cause.
std::string syntax_hint(const std::string& message, std::string_view line) {
  const std::string_view indent = line.substr(0, line.find_first_not_of(" \t"));
  if (indent.find('\t') != std::string_view::npos) return "YAML is indented with spaces, not tabs";
  if (message.find("flow not found") != std::string::npos) return "an opening '[' or '{' before this is not closed";
  return "";
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

YamlNode* YamlNode::find(std::string_view key) {
  return const_cast<YamlNode*>(static_cast<const YamlNode*>(this)->find(key));
}

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::null:
      return "nothing";
    case YamlNode::Kind::list:
      return "a list";
    case YamlNode::Kind::map:
      return "a mapping";
    case YamlNode::Kind::scalar:
      break;
  }
  constexpr size_t kLongest = 60;
  std::string text = node.text.substr(0, kLongest);
  while (!text.empty() && text.size() < node.text.size() && continues_character(node.text[text.size()]))
    text.pop_back();
  if (text.size() < node.text.size()) text += "...";
  return node.quoted ? "the text \"" + text + "\"" : "'" + text + "'";
}

YamlNode read_yaml(std::string_view text, const std::string& file) {
  const bool is_text = text.find('\0') == std::string_view::npos;  // else demand_text says where it is not
  if (text.size() > kMaxYamlBytes && is_text)
    throw SpecError({file, 0, 0}, "",
                    "the file is too long: a job file has at most " + std::to_string(kMaxYamlBytes) + " bytes");
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const Lines lines(text, file);
  demand_text(text, lines);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(lines);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    throw SpecError(lines.at(e.mark), "", "this is not YAML: " + e.msg, syntax_hint(e.msg, lines.line(e.mark)));
  }
  return builder.take();
}

}  // namespace trainctl
