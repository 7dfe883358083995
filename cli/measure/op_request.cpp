// Parses the command line of `trainctl bench`.
#include "cli/measure/op_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/ops/op_def.h"

namespace trainctl {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 34;

/// Splits at commas outside brackets.
std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c == ',' && depth == 0) {
      items.emplace_back();
    } else if (c != ' ' || !items.back().empty()) {
      items.back() += c;
    }
  }
  for (std::string& item : items) item.erase(item.find_last_not_of(' ') + 1);
  return items;
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Shape> integers(std::string_view text, char separator) {
  Shape values;
  while (true) {
    const size_t end = text.find(separator);
    const auto value = number<int64_t>(text.substr(0, end));
    if (!value) return std::nullopt;
    values.push_back(*value);
    if (end == std::string_view::npos) return values;
    text.remove_prefix(end + 1);
  }
}

/// Legal values of a text attribute, since kernels treat unknown values as the default. Empty: any text.
std::vector<std::string> words_of(const std::string& attr) {
  if (attr == "approximate") return {"none", "tanh"};
  if (attr == "out_dtype") return {"f32", "bf16"};
  return epilogue_words(attr);
}

/// Parses `text` as a value of the type of `like`.
std::optional<Value> parse_value(const std::string& text, const Value& like) {
  if (std::holds_alternative<bool>(like)) {
    if (text == "true") return true;
    if (text == "false") return false;
    return std::nullopt;
  }
  if (std::holds_alternative<int64_t>(like)) {
    const auto value = number<int64_t>(text);
    return value ? std::optional<Value>(*value) : std::nullopt;
  }
  if (std::holds_alternative<double>(like)) {
    const auto value = number<double>(text);
    return value ? std::optional<Value>(*value) : std::nullopt;
  }
  if (std::holds_alternative<Ints>(like)) {
    if (text.size() < 2 || text.front() != '[' || text.back() != ']') return std::nullopt;
    auto values = integers(std::string_view(text).substr(1, text.size() - 2), ',');
    return values ? std::optional<Value>(std::move(*values)) : std::nullopt;
  }
  return text;
}

std::string attrs_rule(const KernelExample& example) {
  std::vector<std::string> words;
  for (const auto& [name, value] : example.attrs) words.push_back(name + "=" + to_string(value));
  for (const auto& [name, value] : example.optional) words.push_back("[" + name + "=" + to_string(value) + "]");
  return words.empty() ? "it has no attributes" : "accepted attributes, for example: " + join(words, " ");
}

std::string shapes_of(const KernelExample& example) {
  std::vector<std::string> words;
  for (const KernelExample::Input& input : example.inputs) {
    std::string word;
    for (const int64_t dim : input.shape) word += (word.empty() ? "" : "x") + std::to_string(dim);
    words.push_back(word);
  }
  return join(words, ",");
}

/// The value of `name`, which must have the type of the example's.
Value read_value(const std::string& name, const std::string& text, const Value& like) {
  const std::vector<std::string> words = words_of(name);
  const bool known_word = words.empty() || std::find(words.begin(), words.end(), text) != words.end();
  const std::optional<Value> value = parse_value(text, like);
  if (value && known_word) return *value;
  throw SpecError({}, "--attrs", fmt::format("'{}' is not a value for {}", text, name),
                  words.empty() ? "expected a value like " + to_string(like) : "expected one of " + join(words));
}

Attrs read_attrs(const std::string& kernel, const KernelExample& example, const std::string& text) {
  Attrs attrs = example.attrs;
  if (text.empty()) return attrs;
  std::map<std::string, Value> known(example.attrs.begin(), example.attrs.end());
  known.insert(example.optional.begin(), example.optional.end());
  for (const std::string& item : items_of(text)) {
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const auto like = known.find(name);
    if (equals == std::string::npos || like == known.end()) {
      std::vector<std::string> names;
      for (const auto& [each, value] : known) names.push_back(each);
      const std::string near = did_you_mean(name, names);
      throw SpecError({}, "--attrs", fmt::format("{} has no attribute '{}'", kernel, name),
                      near.empty() ? attrs_rule(example) : near);
    }
    attrs.set(name, read_value(name, item.substr(equals + 1), like->second));
  }
  return attrs;
}

DType dtype_of(KernelExample::Fill fill, const BenchType& type) {
  using Fill = KernelExample::Fill;
  return fill == Fill::indices ? DType::i32 : fill == Fill::statistics ? DType::f32 : type.dtype;
}

/// Inputs that the example lacks precede those of its end: attention's three inputs precede the output and the logs.
void add_inputs(OpRequest& request, const std::vector<Shape>& shapes) {
  const std::vector<KernelExample::Input>& example = request.example.inputs;
  const size_t more = shapes.size() > example.size() ? shapes.size() - example.size() : 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto fill = i >= more && i - more < example.size() ? example[i - more].fill : KernelExample::Fill::values;
    request.fills.push_back(fill);
    request.inputs.push_back({shapes[i], dtype_of(fill, request.type)});
  }
}

/// Infers the outputs. Shape errors, which a plan reports at the layer's line of the job file, name the kernel here.
void add_outputs(OpRequest& request) {
  const KernelExample& example = request.example;
  const std::string rule = fmt::format("{}: {}; e.g. --shape {}", request.name(), example.what, shapes_of(example));
  try {
    if (example.expect != nullptr) example.expect(request.inputs);
    request.outputs = example.outputs != nullptr ? example.outputs(request.inputs, request.attrs, request.type.dtype)
                                                 : get_op(request.name()).infer(request.inputs, request.attrs);
    kernel_cost(*request.kernel, request.inputs, request.outputs,
                request.attrs);  // checks the shapes as far as it needs them
    if (example.below != nullptr) request.below = example.below(request.inputs, request.attrs);
  } catch (const ShapeError& error) {
    throw SpecError({}, "--shape", error.what(), rule);
  }
}

}  // namespace

BenchType parse_bench_type(const std::string& text) {
  if (text == "f32") return {};
  if (text == "bf16") return {DType::bf16, false};
  if (text == "tf32") return {DType::f32, true};
  throw SpecError({}, "--dtype", "unknown type '" + text + "'", "expected f32, bf16 or tf32");
}

std::vector<Shape> parse_shapes(const std::string& text) {
  std::vector<Shape> shapes;
  for (const std::string& item : items_of(text)) {
    const std::optional<Shape> shape = integers(item, 'x');
    double elements = 1;
    if (shape) {
      for (const int64_t dim : *shape) elements *= static_cast<double>(dim);
    }
    const bool good = shape && std::all_of(shape->begin(), shape->end(), [](int64_t dim) { return dim > 0; });
    if (!good || elements > static_cast<double>(kMostElements)) {
      throw SpecError({}, "--shape", "'" + item + "' is not a shape",
                      "write positive dims separated by x, and a comma between inputs: 32x784,784x512");
    }
    shapes.push_back(*shape);
  }
  return shapes;
}

std::string shapes_text(const std::vector<TensorInfo>& infos) {
  std::string text;
  for (const TensorInfo& info : infos) {
    if (!text.empty()) text += ",";
    for (size_t i = 0; i < info.shape.size(); ++i) text += (i > 0 ? "x" : "") + std::to_string(info.shape[i]);
  }
  return text;
}

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (std::string item : items_of(text)) {
    const std::string given = item;
    if (item.ends_with("iB")) item.resize(item.size() - 2);
    if (item.ends_with("B")) item.pop_back();
    int64_t unit = 1;
    if (!item.empty() && item.find_first_of("KMGkmg", item.size() - 1) != std::string::npos) {
      unit = std::toupper(item.back()) == 'K' ? 1 << 10 : std::toupper(item.back()) == 'M' ? 1 << 20 : 1 << 30;
      item.pop_back();
    }
    const auto value = number<int64_t>(item);
    if (!value || *value < 1 || *value > kMostElements / unit) {
      throw SpecError({}, "--bytes", "'" + given + "' is not a size",
                      "expected sizes such as 1K,1M,256M; K, M and G are powers of 1024");
    }
    sizes.push_back(*value * unit);
  }
  return sizes;
}

KernelExample example_of(const KernelDef& kernel) {
  KernelExample example = kernel.example();
  for (const auto& [name, value] : epilogue_attrs(kernel.takes)) example.optional.set(name, value);
  return example;
}

OpRequest make_op_request(const std::string& op, const std::string& shapes, const std::string& attrs,
                          const BenchType& type) {
  OpRequest request;
  request.kernel = find_kernel(op);
  if (request.kernel == nullptr) {
    std::vector<std::string> names;
    for (const KernelDef* kernel : all_kernels()) names.emplace_back(kernel->name);
    const std::string near = did_you_mean(op, names);
    throw SpecError({}, "op", "unknown op '" + op + "'", near.empty() ? "trainctl bench op lists all ops" : near);
  }
  request.type = type;
  request.example = example_of(*request.kernel);
  request.attrs = read_attrs(request.name(), request.example, attrs);
  if (type.tf32 && request.kernel->is_product) request.attrs.set("tf32", true);
  std::vector<Shape> given;
  if (shapes.empty()) {
    for (const KernelExample::Input& input : request.example.inputs) given.push_back(input.shape);
  } else {
    given = parse_shapes(shapes);
  }
  add_inputs(request, given);
  add_outputs(request);
  return request;
}

}  // namespace trainctl
