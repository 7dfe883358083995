// Tests of pairs of answers: which forms of a line give which tokens.
#include "engine/train/data/preference_set.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"
#include "engine/text/train_bpe.h"
#include "engine/train/data/document_set.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

constexpr int64_t kHalfRow = 100;

/// The texts that the halves of a pair's row train, and the text of the whole row.
struct PairTexts {
  std::string chosen, rejected, row;
  bool trains(const std::string& first, const std::string& second) const {
    return chosen == first && rejected == second;
  }
};

PairTexts texts_of_pair(const std::string& folder, const std::string& line) {
  std::ofstream(folder + "/pairs.jsonl") << line << "\n";
  DatasetSpec spec;
  spec.type = "preference";
  spec.paths = {folder + "/pairs.jsonl"};
  spec.tokenizer = folder;
  spec.length = 2 * kHalfRow;
  const PreferenceSet set(spec);
  std::vector<int32_t> data(2 * kHalfRow), targets(2 * kHalfRow);
  const std::vector<void*> to = {data.data(), nullptr, targets.data(), nullptr};
  ReadState state;
  set.read(0, state, to);
  PairTexts texts;
  texts.row = open_tokenizer(folder)->decode(data, false);
  for (int64_t half : {0, 1}) {
    const std::span<const int32_t> of_half = std::span(targets).subspan(static_cast<size_t>(half * kHalfRow), kHalfRow);
    std::vector<int32_t> trained;
    std::ranges::copy_if(of_half, std::back_inserter(trained), [](int32_t token) { return token != kNoTrainedLabel; });
    (half == 0 ? texts.chosen : texts.rejected) = open_tokenizer(folder)->decode(trained, false);
  }
  return texts;
}

void write_pair_tokenizer(const std::string& folder) {
  std::ofstream(folder + "/tokenizer.json") << BpeTraining("gpt2", {"<|end|>"}).train(0);
  std::ofstream(folder + "/tokenizer_config.json") << R"({"eos_token": "<|end|>"})";
  std::ofstream(folder + "/chat_template.jinja")
      << "{% if tools %}{{ tools | length }} tools\n{% endif %}{% for m in messages %}{{ m.role + ': ' + m.content }}\n"
         "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";
}

}  // namespace

TEST_CASE("the answers of a pair are texts or messages, with the prompt in a field or at their beginning") {
  ScratchFolder folder;
  write_pair_tokenizer(folder.path());
  const std::string asked = R"({"role": "user", "content": "Odd?"})",
                    yes = R"({"role": "assistant", "content": "Yes"})",
                    no = R"({"role": "assistant", "content": "No"})";
  const auto lists = [&](const std::string& before) {
    return R"("chosen": [)" + before + yes + R"(], "rejected": [)" + before + no + "]}";
  };
  const auto texts = [&](const std::string& line) { return texts_of_pair(folder.path(), line); };
  CHECK(texts(R"({"prompt": "Odd? ", "chosen": "Yes", "rejected": "No"})").trains("Yes<|end|>", "No<|end|>"));
  CHECK(texts(R"({"prompt": [)" + asked + "], " + lists("")).trains("Yes\n", "No\n"));
  CHECK(texts("{" + lists(asked + ", ")).trains("Yes\n", "No\n"));
  CHECK(texts(R"({"prompt": "Odd?", )" + lists(asked + ", ")).trains("Yes\n", "No\n"));
  CHECK(texts(R"({"chosen": "Odd? Yes", "rejected": "Odd? No"})").trains(" Yes<|end|>", " No<|end|>"));
  CHECK(texts(R"({"chosen": "Odd", "rejected": "Odd, yes"})").trains("d<|end|>", "d, yes<|end|>"));
  const PairTexts with_tools = texts(R"({"tools": [1, 2], )" + lists(asked + ", "));
  CHECK(with_tools.trains("Yes\n", "No\n"));
  CHECK(with_tools.row.starts_with("2 tools\nuser: Odd?\nassistant: Yes"));
  CHECK(texts(R"({"tools": "[1, 2, 3]", )" + lists(asked + ", ")).row.starts_with("3 tools"));
  CHECK_THROWS_AS(texts(R"({"tools": "none", )" + lists(asked + ", ")), SpecError);
  CHECK_THROWS_AS(texts(R"({"prompt": [], "chosen": "Yes", "rejected": "No"})"), SpecError);
  CHECK_THROWS_AS(texts(R"({"chosen": "Yes", "rejected": []})"), SpecError);
}
