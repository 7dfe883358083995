// From the text of a job file to a tree of nodes with positions, or to an error that says what to change.
//
//   read_yaml()   limits the size of the text, and reads it again with joined surrogates if it is not YAML as it is
//   read_tree()   hides the braces of expressions (yaml_text.h) and passes the text to yaml-cpp
//   TreeBuilder   receives yaml-cpp's events: open() and close() for lists and mappings, add() for values; each goes to
//                 the list or mapping around it (add_to_parent). Aliases copy their nodes, and << merges mappings.
//   explain()     turns an error of yaml-cpp into one about the lists, mappings and texts that are open there
//
// The tree is built from events rather than from yaml-cpp's nodes: the handler sees each level as it opens, so it can
// stop at a limit before the parser recurses deeper.
#include "engine/spec/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/spec/yaml_source.h"
#include "engine/spec/yaml_text.h"

namespace trainctl {
namespace {

size_t text_bytes(const YamlNode& node) {
  size_t bytes = node.text.size();
  for (const YamlNode& item : node.items) bytes += text_bytes(item);
  for (const YamlNode::Entry& entry : node.entries) bytes += entry.key.size() + text_bytes(entry.value);
  return bytes;
}

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
  explicit TreeBuilder(const YamlSource& source) : source_(source) {}

  YamlNode take() { return std::move(root_); }

  /// Reports an error of yaml-cpp in terms of the lists, mappings and texts that are open at that position.
  [[noreturn]] void explain(const YAML::Exception& e) const;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    const size_t line = line_of(mark);
    const bool separated = source_.line(line).starts_with("---") || source_.line(line).starts_with("...") ||
                           (line > 0 && source_.line(line - 1).starts_with("..."));
    if (separated) fail(mark, "a second YAML document starts here, but a job file contains exactly one");
    fail(mark, "this does not belong to " + describe(root_) + " at the beginning of the file",
         "check the indentation of this line and the one before");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    YamlNode node;
    node.pos = pos_of(mark);
    node.text = null_word(mark);
    add(std::move(node), anchor, mark);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    last_ = offset_of(mark);
    refuse_tag(mark, tag);
    demand_closed_quote(last_);
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.pos = pos_of(mark);
    node.quoted = tag == "!";
    node.text = show_braces(value);
    const bool says_null = value == "null" || value == "~" || value == "Null" || value == "NULL" || value.empty();
    if (!node.quoted && says_null) node.kind = YamlNode::Kind::null;
    add(std::move(node), anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto known = anchors_.find(anchor);
    if (known == anchors_.end()) fail(mark, "this alias is inside the value that it refers to");
    if (static_cast<int>(open_.size()) + height(known->second) > kMaxYamlDepth) too_deep(mark);
    spend(count(known->second), mark);
    alias_bytes_ += text_bytes(known->second);
    if (alias_bytes_ > kMaxYamlBytes)
      fail(mark, "the file contains more than " + std::to_string(kMaxYamlBytes) +
                     " bytes of text after its aliases "
                     "are expanded");
    add_to_parent(YamlNode(known->second), mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(YamlNode::Kind::list, mark, tag, anchor, style);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(YamlNode::Kind::map, mark, tag, anchor, style);
  }
  void OnMapEnd() override {
    merge(open_.back());
    close();
  }

 private:
  void explain_quote(const YAML::Exception& e) const;
  void explain_bracket(const YAML::Exception& e) const;
  void explain_block(const YAML::Exception& e) const;

  struct Open {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    bool is_flow = false;        ///< in brackets
    bool key_read = false;       ///< map: the last entry waits for its value
    std::set<std::string> keys;  ///< map
  };

  static size_t not_negative(int number) { return static_cast<size_t>(std::max(0, number)); }
  size_t line_of(const YAML::Mark& mark) const { return not_negative(mark.line); }
  SourcePos pos_of(const YAML::Mark& mark) const { return source_.at(line_of(mark), not_negative(mark.column)); }
  size_t offset_of(const YAML::Mark& mark) const { return source_.offset_of(line_of(mark), not_negative(mark.column)); }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& message, const std::string& hint = {}) const {
    throw SpecError(pos_of(mark), "", message, hint);
  }
  [[noreturn]] void too_deep(const YAML::Mark& mark) const {
    fail(mark, "nested more than " + std::to_string(kMaxYamlDepth) + " levels deep");
  }

  /// Returns how a null value is written, "null" or "~"; "" if nothing is written.
  std::string null_word(const YAML::Mark& mark) const {
    const std::string_view rest = source_.from(offset_of(mark));
    for (const char* word : {"~", "null", "Null", "NULL"})
      if (rest.starts_with(word)) return word;
    return "";
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) const {
    // yaml-cpp gives quoted texts and blocks the tag "!", and plain texts the tag "?". But a user can also write "!" as
    // a tag before a value.
    const bool written = tag == "!" && source_.from(offset_of(mark)).starts_with('!');
    if (!written && (tag.empty() || tag == "?" || tag == "!")) return;
    fail(mark, "YAML tags ('" + tag + "') are not supported in a job file", "remove the tag");
  }

  /// Counts nodes that aliases copy, and reports an error beyond a limit: nested aliases could otherwise grow without
  /// bound.
  void spend(int nodes, const YAML::Mark& mark) {
    spent_ += nodes;
    if (spent_ > kMaxYamlNodes)
      fail(mark, "the file contains more than " + std::to_string(kMaxYamlNodes) +
                     " values after its aliases are "
                     "expanded");
  }

  /// yaml-cpp lets an unclosed quoted text extend to the next quote or the end of the file; this reports it instead.
  void demand_closed_quote(size_t offset) const {
    const std::optional<QuotedText> quoted = source_.quoted_at(offset);
    if (!quoted) return;
    if (!quoted->close) never_closed(*quoted);
    const size_t first = source_.line_of(quoted->open), last = source_.line_of(*quoted->close);
    for (size_t line = first + 1; line <= last; ++line) {
      const std::optional<size_t> indent = source_.indent_of(line);
      if (indent && static_cast<int64_t>(*indent) <= block_indent()) not_continued(*quoted, line);
    }
  }

  [[noreturn]] void never_closed(const QuotedText& quoted) const {
    const std::string quote(source_.from(quoted.open).substr(0, 1));
    throw SpecError(source_.at_offset(quoted.open), "", "this quote is never closed",
                    "close it with " + quote + " at the end of the text");
  }

  [[noreturn]] void not_continued(const QuotedText& quoted, size_t line) const {
    const std::string quote(source_.from(quoted.open).substr(0, 1));
    throw SpecError(
        source_.at_offset(quoted.open), "",
        "this quote is not closed before line " + std::to_string(line + 1) + ", which is not indented like the text",
        "close it with " + quote + ", or indent the lines on which the text continues");
  }

  /// The column of the innermost block that is open; a text that belongs to it is indented more. -1: none.
  int64_t block_indent() const {
    for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
      if (open->is_flow) continue;
      if (open->node.is_map() && !open->node.entries.empty()) return open->node.entries.front().key_pos.column - 1;
      if (open->node.is_list() && source_.from(offset_of(open->mark)).starts_with('-')) return open->mark.column;
    }
    return -1;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YAML::EmitterStyle::value style) {
    last_ = offset_of(mark);
    refuse_tag(mark, tag);
    if (static_cast<int>(open_.size()) >= kMaxYamlDepth) too_deep(mark);
    spend(1, mark);
    Open opened;
    opened.node.kind = kind;
    opened.node.pos = pos_of(mark);
    opened.anchor = anchor;
    opened.mark = mark;
    opened.is_flow = style == YAML::EmitterStyle::Flow;
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

  [[noreturn]] void appears_twice(const std::string& key, const YAML::Mark& mark) const {
    const std::vector<YamlNode::Entry>& entries = open_.back().node.entries;
    const auto first =
        std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.key == key; });
    fail(mark, "the key '" + key + "' appears twice",
         first == entries.end()
             ? ""
             : "it is also in line " + std::to_string(first->key_pos.line) + "; keep one of them, or merge them");
  }

  bool wants_key() const { return !open_.empty() && open_.back().node.is_map() && !open_.back().key_read; }

  void add_to_parent(YamlNode node, const YAML::Mark& mark) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (open_.back().node.is_list()) {
      open_.back().node.items.push_back(std::move(node));
    } else if (wants_key()) {
      if (!node.is_scalar()) fail(mark, "a key must be a name, not " + describe(node));
      if (!open_.back().keys.insert(node.text).second) appears_twice(node.text, mark);
      open_.back().node.entries.push_back({node.text, node.pos, {}});
      open_.back().key_read = true;
    } else {
      YamlNode::Entry& entry = open_.back().node.entries.back();
      // No value follows the colon, so errors about the value are reported at the key.
      if (node.is_null() && node.text.empty()) node.pos = entry.key_pos;
      entry.value = std::move(node);
      open_.back().key_read = false;
    }
  }

  /// `<<: *defaults`: adds the keys of another mapping (or of several, the first wins) that this one lacks.
  void merge(Open& open) {
    YamlNode& map = open.node;
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
        if (open.keys.insert(entry.key).second) map.entries.push_back(entry);
    }
  }

  const YamlSource& source_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  int spent_ = 0;
  size_t alias_bytes_ = 0;
  int documents_ = 0;
  size_t last_ = 0;  ///< where the latest value, list or mapping began
};

bool has(const std::string& message, std::string_view part) { return message.find(part) != std::string::npos; }

[[noreturn]] void not_yaml(const SourcePos& pos, const std::string& what, const std::string& hint = {}) {
  throw SpecError(pos, "", "this is not YAML: " + what, hint);
}

void TreeBuilder::explain(const YAML::Exception& e) const {
  const std::string_view text = source_.line(line_of(e.mark));
  if (text.substr(0, text.find_first_not_of(" \t")).find('\t') != std::string_view::npos)
    not_yaml(pos_of(e.mark), "a tab in the indentation", "YAML is indented with spaces, not tabs");
  explain_quote(e);
  explain_bracket(e);
  explain_block(e);
  not_yaml(pos_of(e.mark), e.msg);
}

/// Reports the error if a quoted text that ends too late or too early is its cause.
void TreeBuilder::explain_quote(const YAML::Exception& e) const {
  const size_t line = line_of(e.mark);
  // yaml-cpp found the end of the document or file inside a quoted text, for which it has sent no event.
  if (has(e.msg, "in scalar"))
    if (const std::optional<QuotedText> quoted = source_.next_quoted(last_)) never_closed(*quoted);
  // A quoted text has ended too early, or at a quote that was meant to begin the next text.
  const std::optional<QuotedText> quoted = source_.quoted_at(last_);
  if (quoted && quoted->close && source_.line_of(*quoted->close) == line && *quoted->close < offset_of(e.mark)) {
    if (source_.line_of(quoted->open) < line) not_continued(*quoted, line);
    not_yaml(pos_of(e.mark), "there is text after the closing quote",
             "in double quotes, write a quote as \\\"; in single quotes, write it as ''");
  }
}

/// Reports the error if a bracket without its counterpart is its cause.
void TreeBuilder::explain_bracket(const YAML::Exception& e) const {
  const size_t line = line_of(e.mark), offset = offset_of(e.mark);
  const SourcePos pos = pos_of(e.mark);
  const auto flow = std::find_if(open_.rbegin(), open_.rend(), [](const Open& open) { return open.is_flow; });
  if (has(e.msg, "flow not found") && flow != open_.rend()) {
    const bool is_list = flow->node.is_list();
    const std::string opening = is_list ? "'['" : "'{'", closing = is_list ? "']'" : "'}'";
    // Closed after all on this line: something before that is wrong.
    if (source_.line(line).find(is_list ? ']' : '}', offset - source_.offset_of(line, 0)) != std::string_view::npos)
      not_yaml(pos, "expected ',' or " + closing + " here",
               "the " + opening + " is in line " + std::to_string(flow->node.pos.line));
    not_yaml(flow->node.pos, "this " + opening + " is never closed", "close it with " + closing);
  }
  if (has(e.msg, "illegal block entry"))
    if (const std::optional<size_t> open = source_.unclosed_bracket(offset)) {
      const bool is_list = source_.from(*open).front() == '[';
      not_yaml(source_.at_offset(*open), is_list ? "this '[' is never closed" : "this '{' is never closed",
               std::string("close it with ") + (is_list ? "']'" : "'}'") + " before line " + std::to_string(pos.line));
    }
  if (has(e.msg, "illegal flow end") && flow != open_.rend())
    not_yaml(pos,
             std::string("this bracket does not match the '") + (flow->node.is_list() ? "['" : "{'") + " in line " +
                 std::to_string(flow->node.pos.line) + ", column " + std::to_string(flow->node.pos.column),
             std::string("close that one first with ") + (flow->node.is_list() ? "']'" : "'}'"));
  if (has(e.msg, "illegal flow end"))
    not_yaml(pos, "this bracket has no opening bracket", "remove it, or add the opening bracket");
}

/// Reports the error if a line that does not fit into its list or mapping, or a value that cannot begin so, is its
/// cause.
void TreeBuilder::explain_block(const YAML::Exception& e) const {
  const SourcePos pos = pos_of(e.mark);
  if (has(e.msg, "illegal block entry"))
    not_yaml(pos, "an item of a list ('- ') cannot begin here",
             "a list begins on its own line, below its key: 'network:', then '  - {type: relu}'");
  if (has(e.msg, "illegal map value"))
    not_yaml(pos, "a ':' that separates a key from its value cannot be here",
             "check the indentation and the line before (a key is 'key: value', with a space); text that contains ': ' "
             "needs quotes");
  if (has(e.msg, "end of map not found") || has(e.msg, "end of sequence not found"))
    not_yaml(pos, "this line neither continues the list or mapping above nor ends it",
             "check the indentation; items of one list or mapping begin in the same column");
  if (has(e.msg, "unknown token")) not_yaml(pos, "a value cannot begin with this character", "put the text in quotes");
  if (has(e.msg, "anchor is not defined"))
    not_yaml(pos, "this alias refers to an anchor that is not defined before it",
             "'*' starts an alias; put text in "
             "quotes");
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
  const std::string text = shortened(node.text);
  return node.quoted ? "the text \"" + text + "\"" : "'" + text + "'";
}

namespace {

YamlNode read_tree(std::string_view text, const std::string& file) {
  const YamlSource source(text, file);
  source.demand_text();
  // Without a last newline yaml-cpp sends no event for a quote that is not closed.
  std::istringstream stream{hide_braces(std::string(text)) + "\n"};
  TreeBuilder builder(source);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    builder.explain(e);
  }
  return builder.take();
}

}  // namespace

YamlNode read_yaml(std::string_view text, const std::string& file) {
  const bool is_text = text.find('\0') == std::string_view::npos;  // else demand_text says where it is not
  if (text.size() > kMaxYamlBytes && is_text)
    throw SpecError({file, 0, 0}, "",
                    "the file is too long: a job file has at most " + std::to_string(kMaxYamlBytes) + " bytes");
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  try {
    return read_tree(text, file);
  } catch (const SpecError&) {
    const std::string joined = with_joined_surrogates(std::string(text));
    if (joined == text) throw;
    return read_tree(joined, file);
  }
}

}  // namespace trainctl
