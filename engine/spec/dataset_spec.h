// Settings of `dataset`: where the samples come from, and what is done to them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/attrs.h"

namespace trainctl {

/// One step of dataset.transforms, e.g. {name: "rescale", attrs: {scale: …, shift: …}}.
struct TransformSpec {
  std::string name;
  Attrs attrs;
  std::string path;        ///< "dataset.transforms[1]", or "dataset.transforms.mask[1]"
  std::string field = {};  ///< name of a sample field; empty: the first one that is not `label`
};

/// One of dataset.fields: a field of the samples, and the parts of the files that it is read from.
struct SampleFieldSpec {
  std::string name;
  /// csv: columns, by name or number. tar: extensions. npy: a file. npz, safetensors: an array.
  std::vector<std::string> parts;
};

/// The share of a source in a mixture, relative to the others.
struct SourceShare {
  std::string source;
  double share = 0;
};

/// From `step` on a mixture has other shares. They change linearly over `ramp` steps; 0: at once.
struct ShareChange {
  int64_t step = 0, ramp = 0;
  std::vector<SourceShare> shares;
  std::string path;  ///< "dataset.mix_schedule[0]"
};

struct DatasetSpec {
  std::string type;  ///< mnist | image_folder | tar | csv | table | npy | npz | safetensors | tokens | text | …
  /// Made absolute. mnist, cifar10, cifar100: one folder; all others: folders, files and globs, in order.
  std::vector<std::string> paths;
  std::string split = "train";  ///< mnist, cifar10, cifar100: train | test
  /// Other types: fractions of the samples, chosen by a hash, for training and for validation. 0: no split.
  double train_share = 0, validation_share = 0;
  bool takes_validation_share = false;
  std::vector<std::string> class_paths;  ///< only in a validation: the training set, whose class numbers apply
  std::vector<double> weights;           ///< weight of each path, if data sets are mixed
  std::vector<SampleFieldSpec> fields;
  int channels = 3;                ///< images: 1 | 3
  std::string label_set = "fine";  ///< cifar100: fine | coarse
  std::string delimiter = ",";     ///< csv
  bool header = true;              ///< csv: the first line has the names of the columns
  std::string on_error = "stop";   ///< stop | skip: another sample takes the place of a broken one
  std::string cache = "auto";      ///< auto | memory | disk | none
  std::vector<TransformSpec> transforms;
  std::string label_dtype = "i32";  ///< f32 | i32
  bool labels = true;               ///< false: the files have no labels, and each label is 0
  int64_t batch = 32;               ///< samples of one optimizer step, over all ranks
  bool shuffle = true;
  int64_t shuffle_block =
      0;  ///< samples per block; neighbours stay close together (engine/train/data/block_order.h); 0: no blocks
  bool drop_last = true;
  int64_t repeat = 1;      ///< passes over the set per epoch
  int workers = 0;         ///< threads of a rank that read; 0: chosen while it runs
  int prefetch = 0;        ///< batches read ahead; 0: chosen while it runs
  bool autotune = true;    ///< false: workers and prefetch keep their values; 1 in place of 0
  int64_t max_memory = 0;  ///< bytes of a rank's batches ahead; 0: a sixteenth of the host's memory
  // tokens and text
  int64_t length = 0;                  ///< tokens per sample
  int64_t stride = 0;                  ///< tokens from the start of a sample to the next one's; 0: length
  std::string token_dtype = "uint16";  ///< uint16 | int32: type in files without a header
  // chat, and text with a tokenizer: rows of documents
  std::string tokenizer;                ///< folder or file, made absolute
  std::string json_field;               ///< field of JSON Lines; empty: messages (chat) or text
  std::string label_field;              ///< text: field of JSON Lines with the class; empty: the labels are tokens
  std::string train_on = "all";         ///< all | assistant: tokens whose labels count
  bool pack = false;                    ///< several documents share a row
  std::string packing = "best_fit";     ///< best_fit | in_order | concatenate: how documents share rows
  std::string filter;                   ///< an expression over a document; documents for which it is false are left out
  bool deduplicate = false;             ///< only the first of documents with the same tokens is used
  double fim = 0;                       ///< fraction of the documents that are rearranged for fill-in-the-middle
  double fim_spm = 0.5;                 ///< fraction of those whose suffix comes before their prefix
  std::vector<std::string> fim_tokens;  ///< prefix, suffix and middle token; empty: those that the tokenizer has
  std::string curriculum = "none";      ///< none | length: short samples come first …
  int64_t curriculum_epochs = 1;        ///< … in this many passes over the set
  double curriculum_noise = 0.05;       ///< how far a sample moves from its place by length, as a fraction of the set
  // mix: several sets, each declared in full (engine/planning/mixture.h)
  std::vector<DatasetSpec> sources;
  std::string name;                       ///< a source: its key in dataset.sources
  double max_epochs = 0;                  ///< a source: passes over it in the whole run; 0: no limit
  std::vector<SourceShare> mix;           ///< empty: by the sizes of the sources
  std::string mix_by = "samples";         ///< samples | tokens: the unit of the shares
  double temperature = 1;                 ///< shares to the power of 1 / temperature
  std::vector<ShareChange> mix_schedule;  ///< ascending steps
  std::vector<std::pair<std::string, std::vector<std::string>>> source_paths;  ///< only in a validation: by source
  bool concatenates = false;  ///< only in a validation: each sample of each source comes once
  int64_t store_cache = 0;  ///< bytes on the local disk for blocks of object stores; 0: chosen by the size of the disk
  // audio_folder
  std::string audio = "samples";    ///< samples | mel: what a sample has of a clip
  int64_t sample_rate = 16'000;     ///< required of every file; other rates are errors
  int64_t mel_bins = 80;            ///< mel: values per frame
  int64_t window = 400, hop = 160;  ///< mel: samples of a frame, and from one frame to the next
  // random and constant sets; shapes are per sample
  Ints shape;
  std::string dtype = "f32";  ///< type of data: f32 | i32
  Ints label_shape;           ///< [] = one number per sample
  int64_t samples = 0;        ///< 0: one batch per epoch
  int64_t classes = 0;        ///< random: integers (i32 data, i32 labels) are in [0, classes)
  double value = 1.0;         ///< constant: data
  double label_value = 0.0;   ///< constant: label
  // clicks
  int64_t ids = 8;     ///< ids per sample
  int64_t vocab = 0;   ///< ids are in [0, vocab)
  double zipf = 1.05;  ///< the r-th most frequent id occurs 1 / r^zipf times as often as the most frequent one
  // noise for diffusion models (engine/train/data/noised_set.h)
  int64_t noise_steps = 0;                        ///< 0: no noise is added
  std::string noise_schedule = "linear";          ///< linear | cosine
  std::vector<double> noise_betas{0.0001, 0.02};  ///< linear: variance of the noise of the first and the last step
  // chat and text whose rows use one of several adapters: adapters.field and adapters.names of the job
  std::string adapter_field;               ///< field of a document with the name or number of its adapter
  std::vector<std::string> adapter_names;  ///< empty: no field has adapters

  /// Names of the fields of the samples, in their order; layers may name them as inputs.
  std::vector<std::string> field_names() const;
  bool is_mix() const { return type == "mix"; }
  /// True if batches are drawn from several sources by their shares.
  bool has_mixture() const { return is_mix() && !concatenates; }
  /// True if its samples are rows of documents (engine/train/data/document_set.h).
  bool has_documents() const { return type == "chat" || (type == "text" && !tokenizer.empty() && !has_class_texts()); }
  /// True if its samples are texts with a class (engine/train/data/class_text_set.h).
  bool has_class_texts() const { return type == "text" && !label_field.empty(); }
  /// True if its samples have a field with the number of their adapter, which comes last.
  bool has_adapters() const { return !adapter_names.empty(); }
  /// True if its samples are tokens and the tokens that follow them; a mixture has samples as its first source.
  bool has_tokens() const {
    if (is_mix()) return !sources.empty() && sources.front().has_tokens();
    return type == "tokens" || (type == "text" && !has_class_texts()) || type == "chat";
  }
  /// True if the data set is read through a Source (engine/train/data/source.h).
  bool has_source() const;
  /// True if its files say which samples are for training and which for tests.
  bool has_file_splits() const { return type == "mnist" || type == "cifar10" || type == "cifar100"; }
  bool has_shares() const { return train_share > 0 || validation_share > 0; }
};

}  // namespace trainctl
