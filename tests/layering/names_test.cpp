// The properties of a kernel, op, layer, optimizer or loss are in its definition. No code outside engine/ops depends on
// its name: this test counts the places in the sources that compare a name with text, or look one up by text.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

struct Place {
  std::string file;
  int line;
  std::string text;
  bool operator<(const Place& other) const { return std::tie(file, line) < std::tie(other.file, other.line); }
};

const std::string kString = "\"([^\"\\\\]*)\"";

/// Removes comments; line numbers do not change.
std::string code_of(const std::string& text) {
  std::string code;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      code += text[i++];
    } else if (text[i] == '"' && (i == 0 || text[i - 1] != '\'')) {
      in_string = !in_string;
    } else if (!in_string && text.compare(i, 2, "//") == 0) {
      i = text.find('\n', i);
      if (i == std::string::npos) break;
    }
    code += text[i];
  }
  return code;
}

/// Names of other things with the same spelling.
const std::string kChoices = R"({"none", "tanh"})";                        // of gelu's field `approximate`
const std::string kEnumerators = "kNames[] = ";                            // the texts of an enum, in its to_string
const Names kExempt = {"engine/runtime/comm/collective_call.cpp",          // to_string(Collective)
                       "engine/train/data/chain_builder.cpp",              // transforms of samples
                       "engine/train/checkpoint/gguf/gguf_tokenizer.cpp",  // kinds of special tokens
                       "engine/train/checkpoint/manifest_text.cpp",        // fields of checkpoint.json
                       "engine/train/trainer/generation_request.cpp",      // options of sampling
                       "cli/foreign_options.cpp",                          // options of other launchers
                       "cli/render/plan_colors.cpp"};                      // headings of a plan

std::string read(const fs::path& file) {
  std::ifstream in(file);
  return code_of({std::istreambuf_iterator<char>(in), {}});
}

std::vector<fs::path> sources_in(const fs::path& room) {
  static const Names kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TRAINCTL_SOURCE_DIR) / room))
    if (kExtensions.contains(entry.path().extension())) files.push_back(entry.path());
  return files;
}

template <class Visit>
void for_each_match(const std::string& code, const std::regex& pattern, const Visit& visit) {
  for (std::sregex_iterator m(code.begin(), code.end(), pattern), end; m != end; ++m) visit(*m);
}

/// The names defined in engine/ops: `.name = "relu"`, {"relu", prepare_relu}, `const OpDef relu_op`.
Names defined_names() {
  static const std::vector<std::regex> patterns = {
      std::regex(R"re(\.(?:name|type) = "([a-z][a-z0-9_]*)")re"),
      std::regex(R"re(\{"([a-z][a-z0-9_]*)",\s*prepare_)re"),
      std::regex(R"re((?:Op|Kernel|Layer|Loss|Optimizer)Def\s+([a-z]\w*?)_(?:op|kernel|layer|loss|optimizer)\b)re")};
  Names names = {"flatten", "dense", "reduce_mean", "sgd", "adam", "adamw"};  // not ops or kernels
  for (const fs::path& file : sources_in("engine/ops")) {
    const std::string code = read(file);
    for (const std::regex& pattern : patterns)
      for_each_match(code, pattern, [&](const std::smatch& m) { names.insert(m[1]); });
  }
  return names;
}

bool ends_a_name(const Names& names, const std::string& end) {
  return end.size() > 2 &&
         std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.ends_with(end); });
}

bool starts_a_name(const Names& names, const std::string& start) {
  return start.size() > 2 &&
         std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(start); });
}

/// `== "relu"` and `"relu" ==`; find_op("relu"), is_kernel(v, "relu"), names.contains("relu"); ends_with("_grad"),
/// starts_with("matmul"); lists of text, {"relu", "gelu"}, and tables, {"relu", 1}.
std::set<Place> places_in(const std::string& file, const std::string& code, const Names& names) {
  static const std::regex compared("(?:[=!]=\\s*" + kString + "|" + kString + "\\s*[=!]=)");
  static const std::regex looked_up(
      "\\b(?:(?:find|get|is|has)_(?:op|kernel|\\w+_kernel|layer|layer_type|loss|optimizer)|contains|at|find|count|"
      "compare)"
      "\\((?:[\\w.*>\\[\\]-]+,\\s*)?" +
      kString + "\\)");
  static const std::regex affix("\\b(starts_with|ends_with|remove_suffix|remove_prefix)\\(" + kString + "\\)");
  static const std::regex table("\\{\\s*" + kString +
                                "\\s*,(?!\\s*(?:true|false)\\s*\\})");  // {"bias_grad", true} is an attribute
  static const std::regex list("\\{\\s*\"[^\"]*\"(?:\\s*,\\s*\"[^\"]*\")*\\s*,?\\s*\\}");
  static const std::regex any(kString);
  std::set<Place> places;
  const auto add = [&](const std::smatch& m) {
    const auto at = code.begin() + m.position();
    const auto begin = std::find(std::make_reverse_iterator(at), code.rend(), '\n').base();
    const auto end = std::find(at, code.end(), '\n');
    places.insert({file, static_cast<int>(1 + std::count(code.begin(), at, '\n')), std::string(begin, end)});
  };
  for_each_match(code, compared, [&](const std::smatch& m) {
    if (names.contains(m[1]) || names.contains(m[2])) add(m);
  });
  for_each_match(code, looked_up, [&](const std::smatch& m) {
    if (names.contains(m[1])) add(m);
  });
  for_each_match(code, affix, [&](const std::smatch& m) {
    if (m[1] == "starts_with" ? starts_a_name(names, m[2]) : ends_a_name(names, m[2])) add(m);
  });
  for_each_match(code, table, [&](const std::smatch& m) {
    if (names.contains(m[1])) add(m);
  });
  for_each_match(code, list, [&](const std::smatch& m) {
    const std::string all = m[0];
    if (all == kChoices || std::string_view(code).substr(0, m.position()).ends_with(kEnumerators)) return;
    bool found = false;
    for_each_match(all, any, [&](const std::smatch& one) { found = found || names.contains(one[1]); });
    if (found) add(m);
  });
  return places;
}

}  // namespace

TEST_CASE("the reader of sources finds every way to compare with a name, and nothing else") {
  const Names names = {"relu", "matmul", "sgd_update", "relu_grad"};
  const auto count = [&](const std::string& code) { return places_in("f", code_of(code), names).size(); };
  for (const char* code :
       {R"(if (i.op == "relu"))", R"("relu" != name)", R"(find_op("relu"))", R"(get_op("relu"))",
        R"(find_cpu_kernel("relu"))", R"(is_kernel(c.code[i], "matmul"))", R"(is_kernel(v, "relu"))",
        R"(kNames.contains("sgd_update"))", R"(op.ends_with("_grad"))", R"(op.ends_with("_update"))",
        R"(op.starts_with("mat"))", R"(for (auto op : {"tanh", "relu"}))", R"({"relu", Fusion::activation})",
        R"(const char* const k[] = {"x",
                                    "relu"};)"}) {
    CAPTURE(code);
    CHECK(count(code) == 1);
  }
  for (const char* code :
       {R"(g.emit("matmul", {a, b}))", R"(i.op = "relu";)", R"(// op == "relu")", R"(name == "label")",
        R"(file.ends_with(".yaml"))", R"(error("== relu"))", R"({{"scale", 2.0}})", R"({{"relu", true}})",
        R"(std::string_view kNames[] = {"x", "relu"};)"}) {
    CAPTURE(code);
    CHECK(count(code) == 0);
  }
  CHECK(places_in("f", "a\nb == \"relu\"\n", names).begin()->line == 2);
}

TEST_CASE("outside engine/ops nothing compares the name of a kernel, op, layer, optimizer or loss with text") {
  const Names names = defined_names();
  REQUIRE(names.size() > 55);
  for (const char* name : {"relu", "matmul_weight_grad", "copy_slice", "sgd_update", "mae_with_grad", "dense", "adamw",
                           "softmax_cross_entropy", "all_reduce"})
    REQUIRE_MESSAGE(names.contains(name), name);
  std::set<Place> places;
  for (const char* room :
       {"engine/model", "engine/plan", "engine/compile", "engine/runtime", "engine/train", "cli", "launcher"}) {
    const std::vector<fs::path> files = sources_in(room);
    REQUIRE(files.size() > 2);
    for (const fs::path& file : files) {
      const std::string path = fs::relative(file, TRAINCTL_SOURCE_DIR).string();
      if (!kExempt.contains(path)) places.merge(places_in(path, read(file), names));
    }
  }
  for (const Place& place : places) MESSAGE(place.file, ":", place.line, ": ", place.text);
  CHECK(places.size() == 0);
}
