// The reports of `trainctl data check` and `data show --tokens` on rows of documents.
#include "cli/commands/document_reports.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>
#include <vector>

#include "cli/render/terminal.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/text/tokenizer.h"
#include "engine/train/data/class_text_set.h"
#include "engine/train/data/document_set.h"
#include "engine/train/data/order.h"

namespace trainctl {
namespace {

/// The tokens of a row, from its data and labels.
struct TokenRow {
  std::vector<int32_t> data, label, documents;
};

TokenRow read_row(const DocumentSet& set, int64_t sample) {
  const auto length = static_cast<size_t>(set.fields()[0].elements());
  TokenRow row{std::vector<int32_t>(length), std::vector<int32_t>(length), std::vector<int32_t>(length)};
  std::vector<void*> to = {row.data.data(), row.label.data(), row.documents.data()};
  to.resize(set.fields().size());
  ReadState state;
  set.read(sample, state, to);
  return row;
}

/// Consecutive tokens that are either all trained or all not trained.
std::string run_text(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens, bool is_trained) {
  const std::string text = printable_lines(tokenizer.decode(tokens, false));
  if (colors(STDOUT_FILENO)) return paint(STDOUT_FILENO, is_trained ? Paint::green : Paint::dim, text);
  return is_trained ? "«" + text + "»" : text;
}

/// The text of the positions [begin, end) of one document, and of the token that its last label is.
std::string document_text(const Tokenizer& tokenizer, const TokenRow& row, size_t begin, size_t end) {
  std::string text;
  std::vector<int32_t> run;
  bool is_trained = false;
  const auto add = [&](int32_t token, bool trained) {
    if (trained != is_trained && !run.empty()) text += run_text(tokenizer, std::exchange(run, {}), is_trained);
    is_trained = trained;
    run.push_back(token);
  };
  for (size_t i = begin; i < end; ++i) add(row.data[i], i > begin && row.label[i - 1] != kNoTrainedLabel);
  if (row.label[end - 1] != kNoTrainedLabel) add(row.label[end - 1], true);
  return text + run_text(tokenizer, run, is_trained);
}

/// The end of the row without the padding: tokens 0 whose labels are not trained.
size_t used_positions(const TokenRow& row, bool packs) {
  size_t end = row.data.size();
  const auto is_padding = [&](size_t i) {
    return row.data[i] == 0 && row.label[i] == kNoTrainedLabel && (!packs || row.documents[i] == row.documents.back());
  };
  while (end > 0 && is_padding(end - 1)) --end;
  return end;
}

}  // namespace

void report_documents(const DatasetSpec& spec, const std::string& title) {
  const DocumentSet::Summary found = DocumentSet(spec, 0).summarize();
  const auto share = [](int64_t part, int64_t of) {
    return fmt::format("{:.1f} %", of > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(of) : 0.0);
  };
  std::cout << fmt::format("{}{} in {} of {}\n", title, plural(found.documents, "document"), plural(found.rows, "row"),
                           with_commas(spec.length));
  std::cout << fmt::format("  {} of {} positions are trained ({})\n", with_commas(found.trained),
                           with_commas(found.positions), share(found.trained, found.positions));
  if (found.truncated > 0)
    std::cout << fmt::format("  {} longer than a row and truncated; increase dataset.length to keep {}\n",
                             plural(found.truncated, "document") + (found.truncated == 1 ? " is" : " are"),
                             found.truncated == 1 ? "it" : "them");
  if (found.untrained > 0)
    std::cout << fmt::format("  {} document{} train{} nothing; first: {}\n", with_commas(found.untrained),
                             found.untrained == 1 ? "" : "s", found.untrained == 1 ? "s" : "",
                             printable(found.first_untrained));
  if (found.untrained_rows > 0)
    std::cout << fmt::format("  {} row{} train{} nothing\n", with_commas(found.untrained_rows),
                             found.untrained_rows == 1 ? "" : "s", found.untrained_rows == 1 ? "s" : "");
}

void report_class_texts(const DatasetSpec& spec, const std::string& title) {
  const ClassTextSet set(spec);
  std::map<int32_t, int64_t> counts;
  int64_t full = 0;
  std::vector<int32_t> mask(static_cast<size_t>(spec.length));
  for (int64_t i = 0; i < set.size(); ++i) {
    ReadState state;
    int32_t label = 0;
    const std::array<void*, 3> to = {nullptr, &label, mask.data()};
    set.read(i, state, to);
    ++counts[label];
    full += mask.back();
  }
  std::cout << fmt::format("{}{} texts of {} classes\n", title, with_commas(set.size()), counts.size());
  for (const auto& [label, count] : counts) std::cout << fmt::format("  class {}: {}\n", label, with_commas(count));
  if (full > 0)
    std::cout << fmt::format("  {} texts fill a row or are truncated; increase dataset.length to keep them whole\n",
                             with_commas(full));
}

void show_tokens(const DatasetSpec& spec, uint64_t seed, int64_t rows) {
  const DocumentSet set(spec, seed);
  const auto tokenizer = of_the_document_job("dataset.tokenizer", [&] { return open_tokenizer(spec.tokenizer); });
  SampleOrder order(spec, set, seed);
  for (int64_t i = 0; i < std::min(rows, set.size()); ++i) {
    const int64_t sample = order.batch(0, i / order.batch_size())[static_cast<size_t>(i % order.batch_size())];
    const TokenRow row = read_row(set, sample);
    const size_t end = used_positions(row, spec.pack);
    const auto trained =
        std::count_if(row.label.begin(), row.label.end(), [](int32_t l) { return l != kNoTrainedLabel; });
    std::cout << fmt::format("{:4}  {}: {} of {} positions used, {} trained\n", i + 1, printable(set.where(sample)),
                             end, row.data.size(), trained);
    for (size_t begin = 0; begin < end;) {
      size_t next = begin + 1;
      while (next < end && row.documents[next] == row.documents[begin]) ++next;
      if (begin > 0) std::cout << fmt::format("----- document {}\n", row.documents[begin] + 1);
      std::cout << document_text(*tokenizer, row, begin, next) << "\n";
      begin = next;
    }
  }
}

}  // namespace trainctl
