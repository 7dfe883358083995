// Maps tensors of a job to tensors in the file of another tool, with the order of their elements.
#include "engine/train/checkpoint/name_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/name_map_file.h"
#include "engine/train/checkpoint/name_pattern.h"

namespace trainctl {
namespace {

using Text = NameMapFile::Text;

StoredType type_named(const Text& text, const std::string& path) {
  for (int i = 0; i <= static_cast<int>(StoredType::u64); ++i)
    if (to_string(static_cast<StoredType>(i)) == text.text && bits_of(static_cast<StoredType>(i)) >= 8)
      return static_cast<StoredType>(i);
  throw SpecError(text.pos, path, "'" + text.text + "' is not a safetensors type", "e.g. F32, I64");
}

struct SizeRule {
  Text letters;
  struct Choice {
    std::optional<int64_t> number;
    std::optional<NamePattern> layer;
    std::string field;
  };
  std::vector<Choice> choices;
};

struct NameRule {
  NamePattern ours;
  std::vector<NamePattern> theirs;
  std::optional<AxisOrder> order;
  std::vector<SizeRule> sizes;
  std::optional<SizeRule> each;
  std::string path;
};

struct ConstantRule {
  NamePattern name, with;
  StoredType type;
  int64_t value;
  bool is_steps;
};

struct FusedRule {
  NamePattern whole;
  std::vector<NamePattern> parts;
};

struct TiedRule {
  NamePattern name, same_as;
};

std::string list(const std::set<std::string>& names) { return join({names.begin(), names.end()}); }

/// Requires that both patterns have the same holes, so that each name can be derived from the other. `counter` is a
/// hole that only b has; it may be empty.
void demand_same_holes(const NamePattern& a, const NamePattern& b, const std::string& path,
                       const std::string& counter = "") {
  std::set<std::string> expected = a.holes();
  if (!counter.empty()) expected.insert(counter);
  if (expected != b.holes())
    throw SpecError(b.pos(), path,
                    fmt::format("'{}' has the placeholders {{{}}}, but '{}' has {{{}}}", b.text(), list(b.holes()),
                                a.text(), list(expected)),
                    "both patterns need the same placeholders");
}

}  // namespace

struct NameMap::Patterns {
  explicit Patterns(NameMapFile from) : file(std::move(from)) {
    std::vector<Diagnostic> wrong;
    const auto attempt = [&](auto&& part) {
      try {
        part();
      } catch (const SpecError& error) {
        wrong.insert(wrong.end(), error.diagnostics().begin(), error.diagnostics().end());
      }
    };
    for (const NameMapFile::Tensor& t : file.tensors) attempt([&] { add(t); });
    for (const Text& text : file.ignore) attempt([&] { ignored.push_back(pattern(text, Side::theirs, "ignore")); });
    for (const NameMapFile::Fused& f : file.fused) attempt([&] { add(f); });
    for (const NameMapFile::Tied& t : file.tied) attempt([&] { add(t); });
    for (const NameMapFile::Constant& c : file.constants) attempt([&] { add(c); });
    if (!wrong.empty()) throw SpecError(std::move(wrong));
  }

  NamePattern pattern(const Text& text, Side side, const std::string& path) const {
    return {text, side, file.words, path};
  }

  void add(const NameMapFile::Tensor& t) {
    const std::string path = "tensors." + t.ours.text;
    NameRule rule{pattern(t.ours, Side::ours, path), {}, {}, {}, {}, path};
    const std::string& counter = t.each.letters.text;
    if (!counter.empty()) rule.each = each_rule(t, rule.ours, path);
    for (const Text& text : t.theirs) {
      rule.theirs.push_back(pattern(text, Side::theirs, path));
      demand_same_holes(rule.ours, rule.theirs.back(), path, counter);
    }
    if (t.order.text.empty() && t.theirs.size() > 1)
      throw SpecError(t.ours.pos, path, "lists several tensors, but no order that joins them",
                      "e.g. order: \"(g [r+1+1] k) d = (g r k) d, (g k) d, (g k) d\"");
    if (t.order.text.empty() && !t.sizes.empty()) throw SpecError(t.ours.pos, path, "has sizes, but no order");
    if (!t.order.text.empty()) {
      try {
        rule.order = AxisOrder::parse(t.order.text, t.theirs.size());
      } catch (const OrderFault& fault) {
        throw SpecError(t.order.pos, path + ".order", "'" + t.order.text + "' " + fault.message,
                        "write ours = theirs, e.g. \"(h p k) d = d (p h k)\"");
      }
    }
    for (const NameMapFile::Size& size : t.sizes) rule.sizes.push_back(size_rule(size, t, rule.ours, path));
    tensors.push_back(std::move(rule));
  }

  SizeRule size_rule(const NameMapFile::Size& size, const NameMapFile::Tensor& t, const NamePattern& ours,
                     const std::string& path) const {
    const std::string where = path + ".sizes." + size.letters.text;
    for (const char c : size.letters.text)
      if (c != ' ' && (!std::isalpha(static_cast<unsigned char>(c)) || t.order.text.find(c) == std::string::npos))
        throw SpecError(size.letters.pos, where, fmt::format("'{}' is not a letter of the order", std::string(1, c)));
    return choices_of(size, ours, where);
  }

  SizeRule each_rule(const NameMapFile::Tensor& t, const NamePattern& ours, const std::string& path) const {
    const Text& counter = t.each.letters;
    const std::string where = path + ".each";
    if (t.order.text.empty())
      throw SpecError(counter.pos, where, "needs an order of the dims after dim 0", "e.g. order: \"d h = d h\"");
    const bool is_word = std::any_of(file.words.begin(), file.words.end(),
                                     [&](const NameMapFile::Words& words) { return words.name.text == counter.text; });
    if (is_word || ours.holes().contains(counter.text))
      throw SpecError(counter.pos, where, "'" + counter.text + "' already has another meaning", "use another name");
    return choices_of(t.each, ours, where);
  }

  SizeRule choices_of(const NameMapFile::Size& size, const NamePattern& ours, const std::string& where) const {
    SizeRule rule{size.letters, {}};
    for (const Text& value : size.values) {
      if (value.text.find_first_not_of("0123456789") == std::string::npos && value.text.size() < 18) {
        rule.choices.push_back({std::stoll(value.text), {}, ""});
        continue;
      }
      const size_t dot = value.text.rfind('.');
      if (dot == std::string::npos || dot == 0 || dot + 1 == value.text.size())
        throw SpecError(value.pos, where, "'" + value.text + "' is neither a number nor layer.field",
                        "e.g. h.{i}.attn.heads");
      NamePattern layer = pattern({value.text.substr(0, dot), value.pos}, Side::ours, where);
      for (const std::string& hole : layer.holes())
        if (!ours.holes().contains(hole))
          throw SpecError(value.pos, where,
                          "has the placeholder {" + hole + "}, which is missing in '" + ours.text() + "'");
      rule.choices.push_back({{}, std::move(layer), value.text.substr(dot + 1)});
    }
    return rule;
  }

  void add(const NameMapFile::Fused& f) {
    const std::string path = "fused." + f.whole.text;
    FusedRule rule{pattern(f.whole, Side::theirs, path), {}};
    for (const Text& part : f.parts) {
      rule.parts.push_back(pattern(part, Side::theirs, path));
      demand_same_holes(rule.whole, rule.parts.back(), path);
    }
    fused.push_back(std::move(rule));
  }

  void add(const NameMapFile::Tied& t) {
    TiedRule rule{pattern(t.name, Side::theirs, "tied"), pattern(t.same_as, Side::theirs, "tied")};
    demand_same_holes(rule.name, rule.same_as, "tied." + t.name.text);
    tied.push_back(std::move(rule));
  }

  void add(const NameMapFile::Constant& c) {
    const std::string path = "constants." + c.name.text;
    ConstantRule rule{pattern(c.name, Side::theirs, path), pattern(c.with, Side::ours, path + ".with"),
                      type_named(c.dtype, path + ".dtype"), c.value, c.is_steps};
    demand_same_holes(rule.name, rule.with, path);
    if (rule.type != StoredType::i64 && (c.value != 0 || c.is_steps))
      throw SpecError(c.dtype.pos, path, "only a constant of type I64 can have a value other than 0");
    constants.push_back(std::move(rule));
  }

  const NameMapFile file;  ///< the patterns point into its words
  std::vector<NameRule> tensors;
  std::vector<NamePattern> ignored;
  std::vector<FusedRule> fused;
  std::vector<TiedRule> tied;
  std::vector<ConstantRule> constants;
};

LayerNumbers numbers_of(const JobSpec& spec) {
  auto layers = std::make_shared<std::unordered_map<std::string, const LayerSpec*>>();
  for (const LayerSpec& layer : spec.network) layers->emplace(layer.name, &layer);
  return {[layers](std::string_view layer) { return layers->contains(std::string(layer)); },
          [layers](std::string_view layer, std::string_view field) -> std::optional<int64_t> {
            const auto found = layers->find(std::string(layer));
            if (found == layers->end()) return {};
            const Value* value = found->second->attrs.find(field);
            if (value == nullptr || !std::holds_alternative<int64_t>(*value)) return {};
            return std::get<int64_t>(*value);
          }};
}

NameMap::NameMap(std::unique_ptr<Patterns> patterns) : patterns_(std::move(patterns)) {}
NameMap::NameMap(NameMap&&) noexcept = default;
NameMap& NameMap::operator=(NameMap&&) noexcept = default;
NameMap::~NameMap() = default;

NameMap NameMap::same_names() { return NameMap(nullptr); }

NameMap NameMap::parse(std::string_view text, const std::string& file) {
  return NameMap(std::make_unique<Patterns>(read_name_map(text, file)));
}

namespace {

/// Evaluates a size rule. `where` is the path of the rule, for messages.
int64_t size_of(const SizeRule& rule, const Holes& holes, const LayerNumbers& layers, const std::string& where) {
  std::vector<std::string> tried;
  for (const SizeRule::Choice& choice : rule.choices) {
    if (choice.number) return *choice.number;
    const std::string layer = choice.layer->fill(holes);
    if (!layers.has(layer))
      throw SpecError(choice.layer->pos(), where, "the job has no layer '" + layer + "'",
                      "the map is for another network");
    if (const auto number = layers.number(layer, choice.field)) return *number;
    tried.push_back(layer + "." + choice.field);
  }
  throw SpecError(rule.letters.pos, where, "the job sets no " + join(tried, " and no "));
}

}  // namespace

std::optional<MappedTensor> NameMap::of_ours(const std::string& name, const LayerNumbers& layers) const {
  if (!patterns_) return MappedTensor{name, {name}, {}, 0, {}, name, {}};
  const NameRule* found = nullptr;
  Holes holes;
  for (const NameRule& rule : patterns_->tensors) {
    std::optional<Holes> match = rule.ours.match(name);
    if (!match) continue;
    if (found != nullptr)
      throw SpecError(rule.ours.pos(), rule.path,
                      fmt::format("'{}' also matches the pattern '{}'", name, found->ours.text()));
    found = &rule;
    holes = std::move(*match);
  }
  if (found == nullptr) return {};
  MappedTensor mapped{name, {}, found->order, 0, {}, found->ours.text(), found->ours.pos()};
  for (const SizeRule& size : found->sizes)
    mapped.sizes.emplace_back(size.letters.text,
                              size_of(size, holes, layers, found->path + ".sizes." + size.letters.text));
  if (!found->each) {
    for (const NamePattern& theirs : found->theirs) mapped.theirs.push_back(theirs.fill(holes));
    return mapped;
  }
  mapped.each = size_of(*found->each, holes, layers, found->path + ".each");
  for (int64_t i = 0; i < mapped.each; ++i) {
    holes[found->each->letters.text] = i;
    for (const NamePattern& theirs : found->theirs) mapped.theirs.push_back(theirs.fill(holes));
  }
  return mapped;
}

Shape MappedTensor::ordered_shape(const Shape& ours_shape) const {
  if (each == 0) return ours_shape;
  if (ours_shape.empty() || ours_shape[0] != each)
    throw SpecError(pos, "tensors." + pattern + ".each",
                    fmt::format("is {}, but {} is {}", each, ours, to_string(ours_shape)));
  return {ours_shape.begin() + 1, ours_shape.end()};
}

std::vector<std::string> NameMap::unused(const std::vector<std::string>& ours) const {
  std::vector<std::string> unused;
  if (!patterns_) return unused;
  for (const NameRule& rule : patterns_->tensors)
    if (std::none_of(ours.begin(), ours.end(),
                     [&](const std::string& name) { return rule.ours.match(name).has_value(); }))
      unused.push_back(rule.ours.text());
  return unused;
}

std::vector<MappedConstant> NameMap::constants_with(const std::string& ours, int64_t steps) const {
  std::vector<MappedConstant> constants;
  if (!patterns_) return constants;
  for (const ConstantRule& rule : patterns_->constants)
    if (const auto holes = rule.with.match(ours))
      constants.push_back({rule.name.fill(*holes), rule.type, rule.is_steps ? steps : rule.value});
  return constants;
}

bool NameMap::ignores(const std::string& theirs) const {
  if (!patterns_) return false;
  const auto fits = [&](const NamePattern& pattern) { return pattern.match(theirs).has_value(); };
  return std::any_of(patterns_->ignored.begin(), patterns_->ignored.end(), fits) ||
         std::any_of(patterns_->constants.begin(), patterns_->constants.end(),
                     [&](const ConstantRule& rule) { return fits(rule.name); });
}

std::optional<FusedPart> NameMap::fused_with(const std::string& theirs) const {
  if (!patterns_) return {};
  for (const FusedRule& rule : patterns_->fused)
    for (size_t i = 0; i < rule.parts.size(); ++i) {
      const auto holes = rule.parts[i].match(theirs);
      if (!holes) continue;
      FusedPart part{rule.whole.fill(*holes), {}, i};
      for (const NamePattern& each : rule.parts) part.parts.push_back(each.fill(*holes));
      return part;
    }
  return {};
}

std::optional<std::string> NameMap::tied_to(const std::string& theirs) const {
  if (!patterns_) return {};
  for (const TiedRule& rule : patterns_->tied)
    if (const auto holes = rule.name.match(theirs)) return rule.same_as.fill(*holes);
  return {};
}

bool NameMap::drop_prefix_unless_used(const std::vector<std::string>& names) {
  if (!patterns_ || patterns_->file.prefix.text.empty()) return false;
  const std::string& prefix = patterns_->file.prefix.text;
  if (std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); }))
    return false;
  for (NameRule& rule : patterns_->tensors)
    for (NamePattern& theirs : rule.theirs) theirs.drop_prefix(prefix);
  for (NamePattern& pattern : patterns_->ignored) pattern.drop_prefix(prefix);
  for (ConstantRule& rule : patterns_->constants) rule.name.drop_prefix(prefix);
  for (FusedRule& rule : patterns_->fused) {
    rule.whole.drop_prefix(prefix);
    for (NamePattern& part : rule.parts) part.drop_prefix(prefix);
  }
  for (TiedRule& rule : patterns_->tied) rule.name.drop_prefix(prefix), rule.same_as.drop_prefix(prefix);
  return true;
}

}  // namespace trainctl
