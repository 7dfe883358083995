// The field table of `dataset`. Defaults are the initialisers of job_spec.h.
#include "engine/spec/dataset_fields.h"

#include <algorithm>
#include <limits>

#include "engine/base/entry_types.h"
#include "engine/base/text.h"
#include "engine/spec/field_makers.h"

namespace trainctl {
namespace {

/// "f32 for mae and mse; i32, or class probabilities from one_hot, for softmax_cross_entropy."
std::string label_types() {
  std::vector<std::string> numbers, classes;
  for (const EntryType& loss : loss_types()) (loss.labels_are_classes ? classes : numbers).push_back(loss.name);
  return "f32 for " + in_words(numbers, " and ") + "; i32, or class probabilities from one_hot, for " +
         in_words(classes, " and ") + ".";
}

/// Appends to `others` the types that read files of samples, one image or row at a time.
std::vector<std::string> with_sources(std::vector<std::string> others = {}) {
  for (const char* type :
       {"image_folder", "tar", "csv", "table", "npy", "npz", "safetensors", "cifar10", "cifar100", "audio_folder"})
    others.emplace_back(type);
  return others;
}

}  // namespace

const Section& dataset_section() {
  using D = DatasetSpec;
  static const Section section{
      "dataset",
      "The samples and how they are read.",
      {
          field<&D::type>(
              "type",
              "Format of the data set. mnist: IDX files, optionally gzipped (.gz). image_folder: JPEG and PNG files, "
              "one folder per class. tar: shards in which files with a common name form a sample (WebDataset). csv: "
              "rows of text. table: rows of JSON Lines, Parquet, Arrow, TFRecord, MDS, LMDB, or a Hugging Face folder. "
              "npy, npz, safetensors: arrays. cifar10, cifar100: the CIFAR binary files. audio_folder: wav and flac "
              "files, one folder per class. tokens: token files of nanoGPT, llm.c, or Megatron. text: the bytes of "
              "arbitrary files, or, with `tokenizer`, the tokens of texts. chat: conversations in JSON Lines or "
              "tables. preference: chosen and rejected answers in JSON Lines or tables, for the loss dpo. random, "
              "constant, clicks: generated samples. shapes: generated images of discs, squares, and diamonds, labeled "
              "with the class of each pixel, for segmentation. mix: samples drawn from several data sets.")
              .one_of({"mnist",       "image_folder", "tar",      "csv",          "table",  "npy",  "npz",
                       "safetensors", "cifar10",      "cifar100", "audio_folder", "tokens", "text", "chat",
                       "preference",  "random",       "constant", "clicks",       "shapes", "mix"})
              .required(),
          list_field<&D::paths>(
              "path", FieldKind::paths,
              "Location of the data, relative to the job file. mnist, cifar10, cifar100: the folder that contains the "
              "files. image_folder, audio_folder: the folder that contains the class folders. npy: the folder that "
              "contains the files named by `fields`. All others: files, by name or glob; table, text, chat, and "
              "preference also accept the folder of a table.")
              .for_type(with_sources({"mnist", "tokens", "text", "chat", "preference"}))
              .required(),
          field<&D::split>(
              "split",
              "Part of the data set to use. mnist, cifar10, cifar100: the training files or the test files. All "
              "others: fractions of the samples for training and for `validation`, assigned by a hash.")
              .one_of({"train", "test"})
              .is(FieldKind::split)
              .for_type(with_sources({"mnist"})),
          make_field("fields", FieldKind::sample_fields,
                     "Fields of a sample and their sources: columns (csv, table), file extensions (tar), files (npy), "
                     "or arrays (npz, safetensors). If omitted, tar uses {image: [jpg, jpeg, png], label: cls}; npz "
                     "and safetensors use {data: data, label: label}.")
              .for_type({"tar", "csv", "table", "npy", "npz", "safetensors"}),
          field<&D::weights>("weights",
                             "Sampling weights, one per path. Samples are drawn from the paths in these proportions.")
              .above(0)
              .for_type({"image_folder", "tar", "csv", "table", "npy", "npz", "safetensors"}),
          field<&D::channels>("channels", "Number of channels of the decoded image: 3 (RGB) or 1 (grayscale).")
              .at_least(1)
              .at_most(3)
              .for_type({"image_folder", "tar", "table"}),
          field<&D::label_set>("label_set", "Labels to use: fine (100 classes) or coarse (20 superclasses).")
              .one_of({"fine", "coarse"})
              .for_type({"cifar100"}),
          field<&D::delimiter>("delimiter", "Column separator: a single character, or tab.").for_type({"csv"}),
          field<&D::header>("header",
                            "Whether the first line contains the column names. If false, columns are numbered from 1.")
              .for_type({"csv"}),
          field<&D::length>("length",
                            "Number of tokens per sample; the label of each token is the next token. preference: total "
                            "number of tokens of both answers, each with its prompt. audio_folder: number of audio "
                            "samples per clip; longer clips are truncated, and shorter ones are padded with zeros.")
              .for_type({"tokens", "text", "chat", "preference", "audio_folder"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::audio>("audio",
                           "Representation of a clip. samples: the waveform. mel: a log-mel power spectrogram of shape "
                           "[frames, mel_bins].")
              .one_of({"samples", "mel"})
              .for_type({"audio_folder"}),
          field<&D::sample_rate>("sample_rate",
                                 "Sample rate of the files in Hz; a file with a different rate is an error.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(1'000'000),
          field<&D::mel_bins>("mel_bins", "Number of frequency bands, with `audio: mel`.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(1024),
          field<&D::window>("window", "Number of audio samples per frame, with `audio: mel`.")
              .for_type({"audio_folder"})
              .at_least(2)
              .at_most(65'536),
          field<&D::hop>("hop", "Number of audio samples between the starts of consecutive frames, with `audio: mel`.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(kMaxSize),
          unless_zero<&D::stride>("stride",
                                  "Number of tokens between the starts of consecutive samples; if omitted, `length`.")
              .for_type({"tokens", "text"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::token_dtype>("token_dtype", "Data type of the tokens in files without the llm.c header.")
              .one_of({"uint16", "int32"})
              .for_type({"tokens"}),
          field<&D::tokenizer>("tokenizer",
                               "Model folder, tokenizer.json, or SentencePiece model, relative to the job file. chat "
                               "and preference also read the chat template from the folder.")
              .for_type({"text", "chat", "preference"}),
          field<&D::json_field>("field",
                                "Field of each JSON line that contains the document; if omitted, `messages` for chat "
                                "and `text` for text.")
              .for_type({"text", "chat"}),
          field<&D::label_field>(
              "label_field",
              "Field of each JSON line that contains the class of the text, an integer. Each sample is then a text "
              "with a class, and its field `mask`, for attention, is 1 for tokens and 0 for the padding after them.")
              .for_type({"text"}),
          field<&D::train_on>("train_on",
                              "Tokens that contribute to the loss: all, or only the tokens written by the assistant.")
              .one_of({"all", "assistant"})
              .for_type({"chat"}),
          field<&D::pack>("pack",
                          "Put several documents into a row. The field `documents` contains, for each position, the "
                          "first position of its document, for attention and rotary.")
              .for_type({"text", "chat"}),
          field<&D::packing>("packing",
                             "Method of placing documents in rows, with `pack`. best_fit: longest first, each into the "
                             "fullest row that still has room for it. in_order: in the original order, each into the "
                             "current row if it fits and otherwise into a new row. concatenate: one after another "
                             "without padding; documents are split at row boundaries.")
              .one_of({"best_fit", "in_order", "concatenate"})
              .for_type({"text", "chat"}),
          field<&D::filter>(
              "filter",
              "Expression that selects documents, such as tokens >= 64 and language == 'en'. Documents for which it is "
              "false are skipped. It can use tokens, bytes, and the scalar fields of the JSON line.")
              .for_type({"text", "chat"}),
          field<&D::deduplicate>("deduplicate", "Keep only the first of several documents with identical tokens.")
              .for_type({"text", "chat"}),
          field<&D::fim>("fim",
                         "Fraction of the documents that are rearranged for fill-in-the-middle training, in the order "
                         "prefix, suffix, middle.")
              .at_least(0)
              .at_most(1)
              .for_type({"text"}),
          field<&D::fim_spm>("fim_spm",
                             "Fraction of the rearranged documents in which the suffix comes before the prefix.")
              .at_least(0)
              .at_most(1)
              .for_type({"text"}),
          list_field<&D::fim_tokens>(
              "fim_tokens", FieldKind::any_names,
              "Tokens that mark the start of the prefix, the suffix, and the middle; if omitted, the tokenizer's own "
              "tokens are used, such as <fim_prefix>, <fim_suffix>, and <fim_middle>.")
              .for_type({"text"}),
          field<&D::curriculum>("curriculum",
                                "Order of the rows in the first `curriculum_epochs` passes. length: rows with short "
                                "documents come before rows with long ones.")
              .one_of({"none", "length"})
              .for_type({"text", "chat"}),
          field<&D::curriculum_epochs>(
              "curriculum_epochs", "Number of passes over the data set, from the first, that follow the curriculum.")
              .at_least(1)
              .for_type({"text", "chat"}),
          field<&D::curriculum_noise>("curriculum_noise",
                                      "Maximum random displacement of a row from its position when sorted by length, "
                                      "as a fraction of the data set.")
              .at_least(0)
              .at_most(1)
              .for_type({"text", "chat"}),
          field<&D::store_cache>(
              "store_cache",
              "Maximum size of the local disk cache for blocks of objects read from s3://, gs://, and https:// paths; "
              "0: 16 GiB or a quarter of the free disk space, whichever is smaller.")
              .is(FieldKind::bytes)
              .at_least(0)
              .for_type({"tar", "csv", "npy", "npz", "safetensors", "tokens", "text", "chat", "preference", "table"}),
          make_field("sources", FieldKind::sources,
                     "Data sets to draw from, by name. Each takes the fields of `dataset` for its own type, except the "
                     "fields for batches and loading, and optionally `max_epochs`, the maximum number of passes over "
                     "it in the whole run.")
              .for_type({"mix"})
              .required(),
          make_field("mix", FieldKind::shares,
                     "Relative share of each source; a source that is not listed has a share of 0. If omitted, shares "
                     "are proportional to the sizes of the sources.")
              .for_type({"mix"}),
          field<&D::mix_by>(
              "mix_by", "Unit of the shares. With tokens, a source with shorter documents contributes more samples.")
              .one_of({"samples", "tokens"})
              .for_type({"mix"}),
          field<&D::temperature>("temperature",
                                 "Temperature of the shares: each share is raised to the power of 1 / temperature. "
                                 "Values above 1 make the shares more equal, and values below 1 make them less equal.")
              .above(0)
              .at_most(1000)
              .for_type({"mix"}),
          make_field("mix_schedule", FieldKind::share_changes,
                     "Changes to the shares, each from a given step on, e.g. [{step: 1000, mix: {code: 1}, ramp: "
                     "200}]. Shares change linearly over `ramp` steps; if `ramp` is omitted, they change at once.")
              .for_type({"mix"}),
          make_field("transforms", FieldKind::transforms,
                     "Transforms to apply to each sample, in order: a list for the first field, or a list per field.")
              .for_type(with_sources({"mnist"})),
          field<&D::on_error>("on_error",
                              "Action taken if a sample cannot be read. stop: the run ends. skip: the sample is "
                              "counted and replaced by another.")
              .one_of({"stop", "skip"})
              .for_type(with_sources()),
          field<&D::cache>(
              "cache",
              "Where samples are cached after they are read. auto: in memory if all samples fit in 1/16 of it. disk: "
              "in a file in the folder TMPDIR. Samples are cached in their state before the first random transform.")
              .one_of({"auto", "memory", "disk", "none"})
              .for_type(with_sources({"mnist"})),
          field<&D::label_dtype>("label_dtype", "Data type of the labels: " + label_types() +
                                                    " class (csv and table): the classes are the distinct values of "
                                                    "the label column, words or numbers, in ascending order.")
              .one_of({"f32", "i32", "class"})
              .for_type(with_sources({"mnist", "random", "constant"})),
          field<&D::labels>("labels",
                            "Whether the files have labels. A run needs labels; `trainctl predict` sets this field to "
                            "false for the samples on its command line.")
              .for_type(with_sources({"mnist", "text"})),
          field<&D::batch>("batch", "Global batch size: samples per step over all ranks and micro-batches.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::shuffle>("shuffle", "Shuffle the samples each epoch, in an order determined by seed and epoch."),
          unless_zero<&D::shuffle_block>(
              "shuffle_block",
              "Number of consecutive samples in a shuffle block. To keep reads local, 16 random blocks at a time are "
              "shuffled together. If omitted, the whole data set is shuffled.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::drop_last>("drop_last", "Drop the last batch of an epoch if it is incomplete."),
          field<&D::repeat>("repeat", "Number of passes over the data set per epoch.").at_least(1),
          field<&D::workers>("workers", "Number of threads per rank that read samples; 0: tuned automatically.")
              .at_least(0)
              .at_most(kMostDataWorkers),
          field<&D::prefetch>("prefetch", "Number of batches to read ahead; 0: tuned automatically.")
              .at_least(0)
              .at_most(kMostPrefetch),
          field<&D::autotune>("autotune",
                              "Tune `workers` and `prefetch` during the run where they are 0. If false, 1 is used for "
                              "each of them that is 0."),
          field<&D::max_memory>("max_memory",
                                "Memory limit per rank for batches that are read ahead; 0: 1/16 of the host's memory.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&D::shape>("shape", "Shape of one sample; for shapes, [channels, height, width].")
              .for_type({"random", "constant", "clicks", "shapes"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::dtype>("dtype", "Data type of the field `data`.")
              .one_of({"f32", "i32"})
              .for_type({"random", "constant"}),
          field<&D::label_shape>("label_shape", "Shape of one label; [] is a scalar.")
              .for_type({"random", "constant"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::samples>("samples",
                             "Number of samples; 0: one batch. For mix, number of samples per epoch; 0: the total "
                             "number of samples in all sources.")
              .for_type({"random", "constant", "clicks", "shapes", "mix"})
              .at_least(0),
          field<&D::classes>("classes",
                             "Number of distinct values of random integers, which are drawn from 0 to classes - 1.")
              .for_type({"random"})
              .at_least(0)
              .at_most(std::numeric_limits<int32_t>::max()),
          field<&D::value>("value", "Value of every element of the data.").for_type({"constant"}),
          field<&D::label_value>("label_value", "Value of every element of the labels.").for_type({"constant"}),
          field<&D::noise_steps>(
              "noise_steps",
              "Number of noise steps for diffusion models; 0: no noise. A step t is drawn for each sample and pass. "
              "The first field x becomes sqrt(a) x + sqrt(1 - a) e, where a decreases with t. The noise e becomes the "
              "label, and the fields `timestep` and `class` contain t and the original label.")
              .for_type(with_sources({"mnist", "shapes"}))
              .at_least(0)
              .at_most(100'000),
          field<&D::noise_schedule>(
              "noise_schedule",
              "Schedule by which a decreases with t (see `noise_steps`). linear: a is the cumulative product of 1 - "
              "beta, with linearly increasing betas (DDPM). cosine: a is the square of a cosine.")
              .one_of({"linear", "cosine"})
              .for_type(with_sources({"mnist", "shapes"})),
          field<&D::noise_betas>("noise_betas", "First and last beta, with `noise_schedule: linear`.")
              .for_type(with_sources({"mnist", "shapes"}))
              .items(2)
              .above(0)
              .below(1),
          field<&D::ids>("ids",
                         "Number of ids per sample. The ids are in the field `ids`, alongside `data` and `label`.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(65'536),
          field<&D::vocab>("vocab", "Number of distinct ids, which range from 0 to vocab - 1.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::zipf>("zipf",
                          "Exponent of Zipf's law: the r-th most frequent id occurs 1 / r^zipf times as often as the "
                          "most frequent id.")
              .for_type({"clicks"})
              .above(0)
              .at_most(8),
      }};
  return section;
}

const Section& source_section() {
  using D = DatasetSpec;
  static const Section section = [] {
    Section source{"a source", "One data set of a mixture.", {}};
    const std::vector<std::string> of_the_mix = {"batch",    "drop_last", "repeat",      "workers",
                                                 "prefetch", "autotune",  "max_memory",  "sources",
                                                 "mix",      "mix_by",    "temperature", "mix_schedule"};
    for (const Field& field : dataset_section().fields)
      if (std::find(of_the_mix.begin(), of_the_mix.end(), field.name) == of_the_mix.end())
        source.fields.push_back(field);
    std::erase(source.fields.front().choices, "mix");
    for (Field& field : source.fields) std::erase(field.only, "mix");
    source.fields.push_back(
        unless_zero_number<&D::max_epochs>(
            "max_epochs", "Maximum number of passes over the source in the whole run; if omitted, unlimited.")
            .above(0));
    return source;
  }();
  return section;
}

const Section& validation_dataset_section() {
  using D = DatasetSpec;
  static const Section section{
      "validation.dataset",
      "Fields that differ from `dataset`. Samples are read in file order, each exactly once.",
      {
          list_field<&D::paths>("path", FieldKind::paths, "Folder or files, of the same type as in `dataset`."),
          field<&D::split>("split",
                           "Part of the data set to use, for mnist, cifar10, and cifar100: the training files or the "
                           "test files. If omitted, as in `dataset`.")
              .one_of({"train", "test"}),
          make_field(
              "sources", FieldKind::named_paths,
              "Held-out files of the sources of a mix, by source name. Sources that are not listed are not evaluated."),
          field<&D::labels>("labels", "Whether the files have labels; if omitted, as in `dataset`."),
          unless_zero<&D::samples>(
              "samples", "Number of samples, for random, constant, clicks, and shapes; if omitted, as in `dataset`.")
              .at_least(1),
      }};
  return section;
}

}  // namespace trainctl
