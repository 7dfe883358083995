// Tests of rows of documents: which tokens they have, which are trained, and how documents share rows.
#include "engine/train/data/document_set.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "engine/base/error.h"
#include "engine/text/tokenizer.h"
#include "engine/text/train_bpe.h"
#include "tests/train/scratch_folder.h"

using namespace trainctl;

namespace {

void write_document_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A folder with a byte-level tokenizer without merges, whose token of a byte is easy to know, and a chat template.
void write_tokenizer(const std::string& folder, const std::string& chat_template) {
  write_document_file(folder + "/tokenizer.json", BpeTraining("gpt2", {"<|end|>", "<|user|>", "<|bot|>"}).train(0));
  write_document_file(folder + "/chat_template.jinja", chat_template);
}

constexpr const char* kPlainTemplate =
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}";

DatasetSpec talk_set(const std::string& folder, int64_t length) {
  DatasetSpec spec;
  spec.type = "chat";
  spec.paths = {folder + "/talks.jsonl"};
  spec.tokenizer = folder;
  spec.length = length;
  return spec;
}

struct DocumentRow {
  std::vector<int32_t> data, label, documents;
};

DocumentRow document_row(const DocumentSet& set, int64_t sample) {
  const auto length = static_cast<size_t>(set.fields()[0].elements());
  DocumentRow row{std::vector<int32_t>(length), std::vector<int32_t>(length), std::vector<int32_t>(length)};
  std::vector<void*> to = {row.data.data(), row.label.data(), row.documents.data()};
  to.resize(set.fields().size());
  ReadState state;
  set.read(sample, state, to);
  return row;
}

/// The text of the labels that are trained.
std::string trained_part(const std::string& folder, const DocumentRow& row) {
  std::vector<int32_t> tokens;
  std::copy_if(row.label.begin(), row.label.end(), std::back_inserter(tokens),
               [](int32_t l) { return l != kNoTrainedLabel; });
  return open_tokenizer(folder)->decode(tokens, false);
}

std::string chat_message(const std::string& role, const std::string& content) {
  return R"({"role": ")" + role + R"(", "content": ")" + content + "\"}";
}

std::string document_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const SpecError& error) {
    return error.diagnostics()[0].path + ": " + error.diagnostics()[0].message;
  } catch (const EnvError& error) {
    return error.what();
  }
  return "";
}

const std::string kTwoTurns = "{\"messages\": [" + chat_message("user", "Hi") + "," + chat_message("bot", "Yes") + "," +
                              chat_message("user", "Ok?") + "]}\n";

}  // namespace

TEST_CASE("a row has a conversation's tokens, the next tokens as labels, and padding that is not trained") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  write_document_file(folder.path() + "/talks.jsonl", kTwoTurns + "\n" + kTwoTurns);
  const DocumentSet set(talk_set(folder.path(), 40));
  CHECK(set.size() == 2);
  const DocumentRow row = document_row(set, 1);
  const std::vector<int32_t> tokens =
      open_tokenizer(folder.path())->encode("<|user|>Hi<|end|>\n<|bot|>Yes<|end|>\n<|user|>Ok?<|end|>\n", false);
  REQUIRE(tokens.size() < 40);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    CHECK(row.data[i] == tokens[i]);
    CHECK(row.label[i] == tokens[i + 1]);
  }
  for (size_t i = tokens.size() - 1; i < 40; ++i) {
    CHECK(row.data[i] == 0);
    CHECK(row.label[i] == kNoTrainedLabel);
  }
  CHECK(set.where(1).ends_with("talks.jsonl:3"));
}

TEST_CASE("train_on assistant trains only what assistants write, with or without generation blocks in the template") {
  const std::string with_blocks =
      "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content + "
      "'<|end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|end|>' }}{% endif %}\n{% endfor %}";
  const std::string without =
      "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}\n{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";
  for (const std::string& chat_template : {with_blocks, without}) {
    ScratchFolder folder;
    write_tokenizer(folder.path(), chat_template);
    write_document_file(folder.path() + "/talks.jsonl",
                        "{\"messages\": [" + chat_message("user", "Hi") + "," + chat_message("assistant", "Yes") + "," +
                            chat_message("user", "So?") + "," + chat_message("assistant", "No") +
                            "]}\n{\"messages\": [" + chat_message("user", "alone") + "]}\n");
    DatasetSpec spec = talk_set(folder.path(), 100);
    spec.train_on = "assistant";
    const DocumentSet set(spec);
    CHECK(trained_part(folder.path(), document_row(set, 0)) == "Yes<|end|>No<|end|>");
    CHECK(trained_part(folder.path(), document_row(set, 1)) == "");
    const DocumentSet::Summary summary = set.summarize();
    CHECK(summary.untrained == 1);
    CHECK(summary.first_untrained.ends_with("talks.jsonl:2"));
    CHECK(summary.truncated == 0);
  }
}

TEST_CASE(
    "a template that renders earlier answers differently still marks them, or is an error that names generation") {
  ScratchFolder folder;
  const std::string chat = "{\"messages\": [" + chat_message("user", "a") + "," + chat_message("assistant", "first") +
                           "," + chat_message("user", "b") + "," + chat_message("assistant", "second") + "]}\n";
  write_document_file(folder.path() + "/talks.jsonl", chat);
  DatasetSpec spec = talk_set(folder.path(), 200);
  spec.train_on = "assistant";
  // Like the template of Qwen3: the last answer begins with an empty thought.
  write_tokenizer(folder.path(),
                  "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if loop.last and m.role == 'assistant' %}"
                  "{{ '<think></think>' }}{% endif %}{{ m.content + '<|end|>' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}");
  {
    const DocumentSet set(spec);
    CHECK(trained_part(folder.path(), document_row(set, 0)) == "first<|end|><think></think>second<|end|>");
  }
  write_tokenizer(folder.path(), "{{ messages | length }}{% for m in messages %}{{ m.content | length }}{% endfor %}");
  CHECK(document_error([&] { DocumentSet set(spec); }).find("{% generation %}") != std::string::npos);
}

TEST_CASE("documents that train nothing are counted, and those whose trained tokens are cut off, packed or not") {
  ScratchFolder folder;
  write_tokenizer(folder.path(),
                  "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}\n{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}");
  const auto talk = [](const std::string& first, const std::string& second) {
    return "{\"messages\": [" + chat_message("user", first) +
           (second.empty() ? "" : "," + chat_message("assistant", second)) + "]}\n";
  };
  write_document_file(folder.path() + "/talks.jsonl", talk("Hi", "Yes") + talk("alone", "") +
                                                          talk(std::string(90, 'x'), "too late") + talk("So?", "No"));
  DatasetSpec spec = talk_set(folder.path(), 64);
  spec.train_on = "assistant";
  for (const bool packs : {false, true}) {
    spec.pack = packs;
    const DocumentSet::Summary summary = DocumentSet(spec).summarize();
    CHECK(summary.documents == 4);
    CHECK(summary.untrained == 2);
    CHECK(summary.cut_off == 1);
    CHECK(summary.truncated == 1);
    CHECK(summary.first_untrained.ends_with("talks.jsonl:2"));
    CHECK(summary.untrained_rows == (packs ? 1 : 2));
    CHECK(summary.trained == 7);  // Yes<|end|>No<|end|>, a token per byte
  }
}

TEST_CASE(
    "packed rows have each pair of a token and its successor exactly once, and the first position of each document") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  std::string talks;
  for (int i = 0; i < 60; ++i)
    talks += "{\"messages\": [" +
             chat_message("user", std::string(static_cast<size_t>(i * 7 % 31), static_cast<char>('a' + i % 26))) +
             "]}\n";
  write_document_file(folder.path() + "/talks.jsonl", talks);
  DatasetSpec spec = talk_set(folder.path(), 64);
  const DocumentSet plain(spec);
  spec.pack = true;
  const DocumentSet packed(spec);
  CHECK(packed.size() < plain.size() / 2);
  std::map<std::pair<int32_t, int32_t>, int> pairs;
  for (int64_t i = 0; i < plain.size(); ++i) {
    const DocumentRow row = document_row(plain, i);
    for (size_t j = 0; j < row.label.size(); ++j)
      if (row.label[j] != kNoTrainedLabel) ++pairs[{row.data[j], row.label[j]}];
  }
  for (int64_t i = 0; i < packed.size(); ++i) {
    const DocumentRow row = document_row(packed, i);
    CHECK(row.documents.front() == 0);
    for (size_t j = 0; j < row.label.size(); ++j) {
      if (row.label[j] != kNoTrainedLabel) --pairs[{row.data[j], row.label[j]}];
      if (j == 0) continue;
      const auto position = static_cast<int32_t>(j);
      CHECK((row.documents[j] == row.documents[j - 1] || row.documents[j] == position));
      if (row.documents[j] == row.documents[j - 1] && row.label[j - 1] != kNoTrainedLabel)
        CHECK(row.data[j] == row.label[j - 1]);
    }
  }
  for (const auto& [pair, count] : pairs) CHECK(count == 0);
}

TEST_CASE("packing fills rows, keeps the order of documents, and is the same in every run") {
  std::vector<DocumentPart> parts;
  for (int i = 0; i < 500; ++i) parts.push_back({i, 0, 1 + (i * 37) % 100});
  const auto rows = pack_rows(parts, 100);
  int64_t total = 0;
  std::vector<int> seen(parts.size());
  int64_t previous = -1;
  for (const auto& row : rows) {
    int64_t used = 0;
    CHECK(row.front().document > previous);
    previous = row.front().document;
    for (size_t i = 0; i < row.size(); ++i) {
      used += row[i].count;
      ++seen[static_cast<size_t>(row[i].document)];
      if (i > 0) CHECK(row[i].document > row[i - 1].document);
    }
    CHECK(used <= 100);
    total += used;
  }
  CHECK(std::all_of(seen.begin(), seen.end(), [](int count) { return count == 1; }));
  CHECK(total > static_cast<int64_t>(rows.size()) * 98);
}

TEST_CASE("a long text continues in further rows, from lines, whole files and gzipped files") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  DatasetSpec spec;
  spec.type = "text";
  spec.tokenizer = folder.path();
  spec.length = 4;
  write_document_file(folder.path() + "/a.jsonl", "{\"text\": \"abcdefghijk\"}\n{\"text\": \"xy\"}\n");
  spec.paths = {folder.path() + "/a.jsonl"};
  const DocumentSet set(spec);
  CHECK(set.size() == 4);  // 10 pairs in rows of 4, and 1 pair
  std::string all;
  for (int64_t i = 0; i < set.size(); ++i) all += trained_part(folder.path(), document_row(set, i)) + "|";
  CHECK(all == "bcde|fghi|jk|y|");
  const gzFile out = gzopen((folder.path() + "/b.jsonl.gz").c_str(), "wb");
  gzputs(out, "{\"text\": \"abcdefghijk\"}\n\n{\"text\": \"xy\"}");
  gzclose(out);
  spec.paths = {folder.path() + "/b.jsonl.gz"};
  const DocumentSet packed_file(spec);
  CHECK(packed_file.size() == 4);
  CHECK(document_row(packed_file, 2).data == document_row(set, 2).data);
  CHECK(packed_file.where(3).ends_with("b.jsonl.gz:3"));
  write_document_file(folder.path() + "/c.txt", "abcde\nfghij");
  spec.paths = {folder.path() + "/c.txt"};
  CHECK(DocumentSet(spec).size() == 3);
}

TEST_CASE("errors of documents name the file and the line") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  const DatasetSpec spec = talk_set(folder.path(), 40);
  write_document_file(folder.path() + "/talks.jsonl", kTwoTurns + "{\"talk\": []}\n");
  const std::string text = document_error([&] { DocumentSet set(spec); });
  CHECK(text.find("talks.jsonl:2: has no list of messages in the field 'messages'") != std::string::npos);
  write_document_file(folder.path() + "/talks.jsonl", "");
  CHECK(document_error([&] { DocumentSet empty(spec); }) == "dataset.path: the files contain no documents");
  write_document_file(folder.path() + "/talks.jsonl", kTwoTurns);
  DatasetSpec other = spec;
  other.tokenizer = folder.path() + "/none";
  CHECK(document_error([&] { DocumentSet none(other); }).starts_with("dataset.tokenizer: "));
  const ScratchFolder old_files;
  write_document_file(old_files.path() + "/vocab.json", "{}");
  other.tokenizer = old_files.path();
  CHECK(document_error([&] { DocumentSet none(other); }).find("has vocab.json, but no tokenizer.json") !=
        std::string::npos);
  other = spec;
  other.paths = {folder.path() + "/talks.parquet"};
  write_document_file(folder.path() + "/talks.parquet", "PAR1");
  CHECK(document_error([&] { DocumentSet parquet(other); }).find("Parquet") != std::string::npos);
}

TEST_CASE("a field is found by its name, or by the names of the objects that it is in") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  const std::string hi = "[" + chat_message("user", "Hi") + "]", bye = "[" + chat_message("user", "Bye") + "]";
  write_document_file(folder.path() + "/talks.jsonl",
                      R"({"sample": {"talk": )" + hi + R"(}, "messages": [], "text": "out", "meta": {"text": "in"}})" +
                          "\n" + R"({"sample.talk": )" + bye + R"(, "meta.text": "dotted"})" + "\n");
  DatasetSpec spec = talk_set(folder.path(), 40);
  spec.json_field = "sample.talk";
  const DocumentSet set(spec);
  CHECK(trained_part(folder.path(), document_row(set, 0)).find("Hi<|end|>") != std::string::npos);
  CHECK(trained_part(folder.path(), document_row(set, 1)).find("Bye<|end|>") != std::string::npos);
  spec.type = "text";
  spec.json_field = "meta.text";
  const DocumentSet texts(spec);
  CHECK(trained_part(folder.path(), document_row(texts, 0)) == "n");
  CHECK(trained_part(folder.path(), document_row(texts, 1)) == "otted");
  spec.json_field = "meta.none";
  CHECK(document_error([&] {
          DocumentSet none(spec);
        }).ends_with("talks.jsonl:1: has no text in the field 'meta.none'; name another with dataset.field"));
}

TEST_CASE("a message without a role is an error, which explains messages of ShareGPT") {
  ScratchFolder folder;
  write_tokenizer(folder.path(), kPlainTemplate);
  const DatasetSpec spec = talk_set(folder.path(), 40);
  const auto error_of = [&](const std::string& second) {
    write_document_file(folder.path() + "/talks.jsonl",
                        R"({"messages": [)" + chat_message("user", "Hi") + "," + second + "]}\n");
    return document_error([&] { DocumentSet set(spec); });
  };
  CHECK(error_of(R"({"content": "Yes"})").find("talks.jsonl:1: message 2 has no role") != std::string::npos);
  CHECK(error_of(R"("Yes")").find("message 2 has no role") != std::string::npos);
  CHECK(error_of(R"({"from": "gpt", "value": "Yes"})").find("rename from and value") != std::string::npos);
}

namespace {

DatasetSpec text_set(const std::string& folder, const std::string& lines, int64_t length) {
  write_tokenizer(folder, kPlainTemplate);
  write_document_file(folder + "/texts.jsonl", lines);
  DatasetSpec spec;
  spec.type = "text";
  spec.paths = {folder + "/texts.jsonl"};
  spec.tokenizer = folder;
  spec.length = length;
  spec.pack = true;
  return spec;
}

/// The number of positions of all rows, without padding.
int64_t used_positions_of(const DocumentSet& set) {
  int64_t used = 0;
  for (int64_t i = 0; i < set.size(); ++i) {
    const DocumentRow row = document_row(set, i);
    used += std::count_if(row.label.begin(), row.label.end(), [](int32_t label) { return label != kNoTrainedLabel; });
  }
  return used;
}

std::string lines_of_texts(const std::vector<std::string>& texts) {
  std::string lines;
  for (size_t i = 0; i < texts.size(); ++i)
    lines += "{\"text\": \"" + texts[i] + "\", \"score\": " + std::to_string(i) + ", \"meta\": {\"lang\": \"" +
             (i % 2 == 0 ? "en" : "de") + "\"}}\n";
  return lines;
}

}  // namespace

TEST_CASE("a filter leaves out documents by their tokens, bytes and fields, and names an unknown field") {
  ScratchFolder folder;
  DatasetSpec spec = text_set(folder.path(), lines_of_texts({"aaaa", "bbbbbb", "cccccccc", "dd"}), 16);
  const auto used = [&](const std::string& filter) {
    spec.filter = filter;
    return used_positions_of(DocumentSet(spec));
  };
  CHECK(used("") == 3 + 5 + 7 + 1);
  CHECK(used("tokens >= 6") == 5 + 7);
  CHECK(used("meta_lang == 'en' and score < 2") == 3);
  CHECK(used("not (score == 2) and bytes > 4") == 3 + 5 + 1);
  spec.filter = "tokens >= 6";
  CHECK(DocumentSet(spec).notes().front() == "2 of 4 documents are left out by dataset.filter");
  CHECK(DocumentSet(spec).summarize().untrained == 0);
  spec.filter = "quality > 1";
  try {
    DocumentSet set(spec);
    FAIL("the filter was accepted");
  } catch (const SpecError& error) {
    CHECK(error.diagnostics().front().path == "dataset.filter");
    CHECK(error.diagnostics().front().message.find("texts.jsonl:1") != std::string::npos);
    CHECK(error.diagnostics().front().hint.find("score") != std::string::npos);
  }
  spec.filter = "tokens + 1";
  CHECK_THROWS_AS(DocumentSet{spec}, SpecError);
  spec.filter = "tokens > 100";
  CHECK_THROWS_AS(DocumentSet{spec}, SpecError);
}

TEST_CASE("of documents with the same tokens only the first is used") {
  ScratchFolder folder;
  DatasetSpec spec = text_set(folder.path(), lines_of_texts({"same", "other", "same", "same", "last"}), 16);
  spec.deduplicate = true;
  const DocumentSet set(spec);
  CHECK(used_positions_of(set) == 3 + 4 + 3);
  CHECK(set.notes().front() == "2 of 5 documents are left out by dataset.deduplicate");
  spec.pack = false;
  CHECK(DocumentSet(spec).size() == 3);
}

TEST_CASE("concatenated rows are full but for the last one, and rows in order keep documents whole") {
  ScratchFolder folder;
  std::vector<std::string> texts;
  int64_t pairs = 0;
  for (size_t i = 0; i < 40; ++i) {
    texts.push_back(std::string(2 + i * 7 % 23, static_cast<char>('a' + i % 26)));
    pairs += static_cast<int64_t>(texts.back().size()) - 1;
  }
  DatasetSpec spec = text_set(folder.path(), lines_of_texts(texts), 32);
  spec.packing = "concatenate";
  const DocumentSet joined(spec);
  CHECK(joined.size() == (pairs + 31) / 32);
  CHECK(used_positions_of(joined) == pairs);
  for (int64_t i = 0; i + 1 < joined.size(); ++i) {
    const DocumentRow row = document_row(joined, i);
    CHECK(std::count(row.label.begin(), row.label.end(), kNoTrainedLabel) == 0);
  }
  spec.packing = "in_order";
  const DocumentSet in_order(spec);
  CHECK(used_positions_of(in_order) == pairs);
  spec.packing = "best_fit";
  const DocumentSet best_fit(spec);
  CHECK(used_positions_of(best_fit) == pairs);
  CHECK(best_fit.size() <= in_order.size());
  CHECK(document_row(in_order, 0).data[0] == document_row(best_fit, 0).data[0]);
}

TEST_CASE("fill-in-the-middle keeps the tokens of a document, in one of two orders, and cuts anew in each pass") {
  const std::vector<int32_t> tokens = {1, 10, 11, 12, 13, 2};
  const FimTokens marks{100, 101, 102, 1, 1};
  CHECK(rearranged(tokens, marks, {1, 3, false}) == std::vector<int32_t>{1, 100, 10, 101, 13, 102, 11, 12, 2});
  CHECK(rearranged(tokens, marks, {1, 3, true}) == std::vector<int32_t>{1, 100, 101, 13, 102, 10, 11, 12, 2});
  ScratchFolder folder;
  DatasetSpec spec = text_set(folder.path(), lines_of_texts({"abcdefghij", "klmnopqrst", "uvwxyz"}), 16);
  spec.fim = 1;
  CHECK_THROWS_AS(DocumentSet{spec}, SpecError);  // the tokenizer has no known tokens
  spec.fim_tokens = {"<|end|>", "<|user|>", "<|bot|>"};
  const DocumentSet set(spec);
  const auto tokenizer = open_tokenizer(folder.path());
  const int32_t prefix = *tokenizer->find("<|end|>"), suffix = *tokenizer->find("<|user|>"),
                middle = *tokenizer->find("<|bot|>");
  CHECK(set.size() == 3);  // each has three more tokens than before, so no two fit into a row
  std::set<std::vector<int32_t>> seen;
  for (uint64_t pass = 0; pass < 8; ++pass) {
    std::vector<int32_t> data(16), label(16), documents(16);
    const std::vector<void*> to = {data.data(), label.data(), documents.data()};
    ReadState state;
    state.rng = SampleRng(1, pass, 0);
    set.read(0, state, to);
    CHECK(data[0] == prefix);
    std::vector<int32_t> whole = {data[0]};
    for (size_t i = 0; i < 16 && label[i] != kNoTrainedLabel; ++i) whole.push_back(label[i]);
    CHECK(whole.size() == 13);
    for (size_t i = 0; i + 1 < whole.size(); ++i) CHECK(data[i] == whole[i]);
    CHECK(std::count(whole.begin(), whole.end(), suffix) == 1);
    CHECK(std::count(whole.begin(), whole.end(), middle) == 1);
    seen.insert(whole);
    const auto at = [&](int32_t token) { return std::find(whole.begin(), whole.end(), token) - whole.begin(); };
    std::vector<int32_t> text(whole.begin() + at(prefix) + 1, whole.begin() + at(suffix));
    std::vector<int32_t> last(whole.begin() + at(suffix) + 1, whole.begin() + at(middle));
    text.insert(text.end(), whole.begin() + at(middle) + 1, whole.end());
    text.insert(text.end(), last.begin(), last.end());
    CHECK(tokenizer->decode(text, false) == "abcdefghij");
  }
  CHECK(seen.size() > 4);
}

TEST_CASE("the lengths of rows are the mean lengths of their documents") {
  ScratchFolder folder;
  DatasetSpec spec = text_set(folder.path(), lines_of_texts({"abcdefghi", "abc", "abcde"}), 16);
  spec.pack = false;
  CHECK(DocumentSet(spec).lengths() == std::vector<int32_t>{8, 2, 4});
  CHECK(DocumentSet(spec).tokens_per_sample() == doctest::Approx(14.0 / 3));
}
