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
              "mnist: IDX files (also .gz). image_folder: JPEG and PNG files, one folder per class. tar: shards in "
              "which files with a common name form a sample (WebDataset). csv: rows of text. table: rows of JSON "
              "Lines, Parquet, Arrow, TFRecord, MDS, LMDB or a Hugging Face folder. npy, npz, safetensors: "
              "arrays. cifar10, cifar100: their binary files. audio_folder: wav and flac files, one folder per "
              "class. tokens: token files of nanoGPT, llm.c or Megatron. text: the "
              "bytes of any files, or with `tokenizer` the tokens of texts. chat: conversations in JSON Lines or "
              "tables. "
              "preference: "
              "chosen and rejected answers in JSON Lines or tables, for the loss dpo. random, constant and clicks "
              "generate samples, and shapes generates images of discs, squares and diamonds whose label has the class "
              "of each pixel, for segmentation. mix: draws from several data sets.")
              .one_of({"mnist",       "image_folder", "tar",      "csv",          "table",  "npy",  "npz",
                       "safetensors", "cifar10",      "cifar100", "audio_folder", "tokens", "text", "chat",
                       "preference",  "random",       "constant", "clicks",       "shapes", "mix"})
              .required(),
          list_field<&D::paths>(
              "path", FieldKind::paths,
              "mnist, cifar10, cifar100: the folder of the files. image_folder, audio_folder: the folder "
              "that contains the class folders. table, text, chat, preference: also the folder of a table."
              "  npy: the folder of the files named by `fields`. All "
              "others: files, by name or glob. Relative to the job file.")
              .for_type(with_sources({"mnist", "tokens", "text", "chat", "preference"}))
              .required(),
          field<&D::split>("split",
                           "mnist, cifar10, cifar100: which files of the folder to use. Others: fractions of the "
                           "samples for training and for `validation`, chosen by a hash.")
              .one_of({"train", "test"})
              .is(FieldKind::split)
              .for_type(with_sources({"mnist"})),
          make_field(
              "fields", FieldKind::sample_fields,
              "The fields of a sample and where they come from: columns (csv, table), file extensions (tar), files "
              "(npy) or arrays (npz, safetensors). If omitted, tar uses {image: [jpg, jpeg, png], label: "
              "cls}; npz and safetensors use {data: data, label: label}.")
              .for_type({"tar", "csv", "table", "npy", "npz", "safetensors"}),
          field<&D::weights>("weights", "One weight per path: samples are drawn from the paths in these proportions.")
              .above(0)
              .for_type({"image_folder", "tar", "csv", "table", "npy", "npz", "safetensors"}),
          field<&D::channels>("channels", "Channels of the decoded image: 3 (red, green, blue) or 1 (grey).")
              .at_least(1)
              .at_most(3)
              .for_type({"image_folder", "tar", "table"}),
          field<&D::label_set>("label_set", "Which labels to use: fine (100 classes) or coarse (20 superclasses).")
              .one_of({"fine", "coarse"})
              .for_type({"cifar100"}),
          field<&D::delimiter>("delimiter", "The column separator: one character, or tab.").for_type({"csv"}),
          field<&D::header>("header", "The first line contains the column names. false: columns are numbered from 1.")
              .for_type({"csv"}),
          field<&D::length>("length",
                            "Tokens per sample; the label of each token is the next token. preference: of both "
                            "answers together, each with its prompt. audio_folder: audio samples per sample; longer "
                            "clips are truncated, and shorter ones are padded with zeros.")
              .for_type({"tokens", "text", "chat", "preference", "audio_folder"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::audio>(
              "audio", "samples: the waveform. mel: the logarithm of the power in frequency bands, [frames, mel_bins].")
              .one_of({"samples", "mel"})
              .for_type({"audio_folder"}),
          field<&D::sample_rate>("sample_rate", "Sample rate in Hz; a file with a different rate is an error.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(1'000'000),
          field<&D::mel_bins>("mel_bins", "For audio: mel, the number of frequency bands.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(1024),
          field<&D::window>("window", "For audio: mel, audio samples per frame.")
              .for_type({"audio_folder"})
              .at_least(2)
              .at_most(65'536),
          field<&D::hop>("hop", "For audio: mel, audio samples between the starts of consecutive frames.")
              .for_type({"audio_folder"})
              .at_least(1)
              .at_most(kMaxSize),
          unless_zero<&D::stride>("stride", "Tokens between the starts of consecutive samples; length if omitted.")
              .for_type({"tokens", "text"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::token_dtype>("token_dtype", "Token type in files without the llm.c header.")
              .one_of({"uint16", "int32"})
              .for_type({"tokens"}),
          field<&D::tokenizer>("tokenizer",
                               "A model's folder, tokenizer.json or a SentencePiece model, relative to the job file. "
                               "chat and preference also read the chat template of the folder.")
              .for_type({"text", "chat", "preference"}),
          field<&D::json_field>("field", "The field of each JSON line: messages for chat and text for text if omitted.")
              .for_type({"text", "chat"}),
          field<&D::label_field>("label_field",
                                 "The field of each JSON line that has the class of the text, a whole number. A sample "
                                 "is then a text with a class, and its field `mask` has 1 for tokens and 0 for the "
                                 "padding after them, for attention.")
              .for_type({"text"}),
          field<&D::train_on>("train_on", "Tokens whose loss counts: all, or those that the assistant writes.")
              .one_of({"all", "assistant"})
              .for_type({"chat"}),
          field<&D::pack>("pack",
                          "Put several documents into a row. The field `documents` has, at each position, the first "
                          "position of its document, for attention and rotary.")
              .for_type({"text", "chat"}),
          field<&D::packing>("packing",
                             "How documents share rows, with `pack`. best_fit: the longest first, each into the row "
                             "with the least room. in_order: each into the row before it while there is room. "
                             "concatenate: one after another without padding; documents are cut at the ends of rows.")
              .one_of({"best_fit", "in_order", "concatenate"})
              .for_type({"text", "chat"}),
          field<&D::filter>("filter",
                            "An expression such as tokens >= 64 and language == 'en'. Documents for which it is false "
                            "are left out. It can use tokens, bytes, and the scalar fields of the JSON line.")
              .for_type({"text", "chat"}),
          field<&D::deduplicate>("deduplicate", "Use only the first of several documents with the same tokens.")
              .for_type({"text", "chat"}),
          field<&D::fim>("fim",
                         "Fraction of the documents that are rearranged for fill-in-the-middle: prefix, suffix, "
                         "middle.")
              .at_least(0)
              .at_most(1)
              .for_type({"text"}),
          field<&D::fim_spm>("fim_spm", "Fraction of the rearranged documents whose suffix comes before the prefix.")
              .at_least(0)
              .at_most(1)
              .for_type({"text"}),
          list_field<&D::fim_tokens>("fim_tokens", FieldKind::any_names,
                                     "The tokens before the prefix, the suffix and the middle; if omitted, those that "
                                     "the tokenizer has, for example <fim_prefix>, <fim_suffix> and <fim_middle>.")
              .for_type({"text"}),
          field<&D::curriculum>("curriculum",
                                "length: in the first `curriculum_epochs` passes, rows with short documents come "
                                "before rows with long ones.")
              .one_of({"none", "length"})
              .for_type({"text", "chat"}),
          field<&D::curriculum_epochs>("curriculum_epochs", "Number of passes over the set that the curriculum orders.")
              .at_least(1)
              .for_type({"text", "chat"}),
          field<&D::curriculum_noise>(
              "curriculum_noise",
              "How far a row may randomly move from its place in the order by length, as a fraction of the set.")
              .at_least(0)
              .at_most(1)
              .for_type({"text", "chat"}),
          field<&D::store_cache>("store_cache",
                                 "Limit of the local disk cache for blocks of objects that are read from s3://, gs:// "
                                 "and https:// paths; 0: 16 GiB, or a quarter of the free disk if that is less.")
              .is(FieldKind::bytes)
              .at_least(0)
              .for_type({"tar", "csv", "npy", "npz", "safetensors", "tokens", "text", "chat", "preference", "table"}),
          make_field("sources", FieldKind::sources,
                     "The data sets to draw from, by name. Each has the fields of `dataset` for its own type, except "
                     "those of batches and loading, and may have `max_epochs`, the passes over it in the whole run.")
              .for_type({"mix"})
              .required(),
          make_field("mix", FieldKind::shares,
                     "The share of each source, relative to the others; a source that is not named has none. If "
                     "omitted, shares are the sizes of the sources.")
              .for_type({"mix"}),
          field<&D::mix_by>("mix_by",
                            "The unit of the shares. tokens: a source with shorter documents contributes more samples.")
              .one_of({"samples", "tokens"})
              .for_type({"mix"}),
          field<&D::temperature>("temperature",
                                 "Each share is raised to the power of 1 / temperature: above 1 they become more "
                                 "equal, below 1 less.")
              .above(0)
              .at_most(1000)
              .for_type({"mix"}),
          make_field("mix_schedule", FieldKind::share_changes,
                     "New shares from a given step on, e.g. [{step: 1000, mix: {code: 1}, ramp: 200}]: they change "
                     "linearly over `ramp` steps, or at once.")
              .for_type({"mix"}),
          make_field("transforms", FieldKind::transforms,
                     "Transforms of each sample, in order: a list for the first field, or a list per field.")
              .for_type(with_sources({"mnist"})),
          field<&D::on_error>("on_error",
                              "What happens if a sample cannot be read. stop: the run ends. skip: the sample is "
                              "counted and replaced by another.")
              .one_of({"stop", "skip"})
              .for_type(with_sources()),
          field<&D::cache>("cache",
                           "Where samples are cached after they are read. auto: in memory if all of them fit in 1/16 "
                           "of it. disk: in a file in the folder TMPDIR. A sample is cached as it is before its "
                           "first random transform.")
              .one_of({"auto", "memory", "disk", "none"})
              .for_type(with_sources({"mnist"})),
          field<&D::label_dtype>("label_dtype", "Type of the labels: " + label_types() +
                                                    " class (csv and table): the distinct values of the label's "
                                                    "column, words or numbers, are the classes, in ascending order.")
              .one_of({"f32", "i32", "class"})
              .for_type(with_sources({"mnist", "random", "constant"})),
          field<&D::labels>("labels",
                            "false: the files have no labels. `trainctl predict` sets it for the samples on its "
                            "command line; a run needs labels.")
              .for_type(with_sources({"mnist", "text"})),
          field<&D::batch>("batch", "Global batch size: samples per step over all ranks and micro-batches.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::shuffle>("shuffle", "Shuffle the samples each epoch, in an order determined by seed and epoch."),
          unless_zero<&D::shuffle_block>("shuffle_block",
                                         "Shuffle in blocks of this many consecutive samples to keep reads local: 16 "
                                         "random blocks at a time are shuffled together. If omitted, the whole set "
                                         "is shuffled.")
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::drop_last>("drop_last", "Drop the last samples of an epoch if they do not fill a batch."),
          field<&D::repeat>("repeat", "Passes over the data set per epoch.").at_least(1),
          field<&D::workers>("workers", "Threads per rank that read samples; 0: tuned automatically.")
              .at_least(0)
              .at_most(kMostDataWorkers),
          field<&D::prefetch>("prefetch", "Batches to read ahead; 0: tuned automatically.")
              .at_least(0)
              .at_most(kMostPrefetch),
          field<&D::autotune>("autotune",
                              "Tune workers and prefetch during the run if they are 0. false: use one of each."),
          field<&D::max_memory>("max_memory",
                                "Memory limit per rank for batches that are read ahead; 0: 1/16 of the host's memory.")
              .is(FieldKind::bytes)
              .at_least(0),
          field<&D::shape>("shape", "Shape of one sample; shapes: [channels, height, width].")
              .for_type({"random", "constant", "clicks", "shapes"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::dtype>("dtype", "Type of the data.").one_of({"f32", "i32"}).for_type({"random", "constant"}),
          field<&D::label_shape>("label_shape", "Shape of one label; [] is a scalar.")
              .for_type({"random", "constant"})
              .at_least(1)
              .at_most(kMaxSize),
          field<&D::samples>("samples",
                             "Number of samples; 0: one batch. mix: samples per epoch; 0: as many as all sources have.")
              .for_type({"random", "constant", "clicks", "shapes", "mix"})
              .at_least(0),
          field<&D::classes>("classes", "Random integers are drawn from 0 to classes - 1.")
              .for_type({"random"})
              .at_least(0)
              .at_most(std::numeric_limits<int32_t>::max()),
          field<&D::value>("value", "Value of every element of the data.").for_type({"constant"}),
          field<&D::label_value>("label_value", "Value of every element of the labels.").for_type({"constant"}),
          field<&D::noise_steps>(
              "noise_steps",
              "For diffusion models: number of noise steps. A step t is drawn for each sample and "
              "pass, the first field becomes sqrt(a) x + sqrt(1 - a) e with a that falls with t, "
              "the label is the noise e, and the fields `timestep` and `class` have t and the former "
              "label. 0: no noise.")
              .for_type(with_sources({"mnist", "shapes"}))
              .at_least(0)
              .at_most(100'000),
          field<&D::noise_schedule>("noise_schedule",
                                    "How a falls with t. linear: a is the product of 1 - beta with betas that rise "
                                    "linearly (DDPM); cosine: the square of a cosine.")
              .one_of({"linear", "cosine"})
              .for_type(with_sources({"mnist", "shapes"})),
          field<&D::noise_betas>("noise_betas", "For noise_schedule: linear, the first and the last beta.")
              .for_type(with_sources({"mnist", "shapes"}))
              .items(2)
              .above(0)
              .below(1),
          field<&D::ids>("ids", "Number of ids per sample, in the field `ids` next to `data` and `label`.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(65'536),
          field<&D::vocab>("vocab", "Number of distinct ids, 0 to vocab - 1.")
              .for_type({"clicks"})
              .at_least(1)
              .at_most(kMaxSize)
              .required(),
          field<&D::zipf>("zipf",
                          "Exponent of Zipf's law: the r-th most frequent id occurs 1 / r^zipf times as "
                          "often as the first.")
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
    source.fields.push_back(unless_zero_number<&D::max_epochs>(
                                "max_epochs", "Passes over the source in the whole run; no limit if omitted.")
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
                           "For mnist, cifar10 and cifar100: which files of the folder to use; as in `dataset` if "
                           "omitted.")
              .one_of({"train", "test"}),
          make_field("sources", FieldKind::named_paths,
                     "For mix: the held-out files of sources, by name. Sources that are not named are not evaluated."),
          field<&D::labels>("labels", "false: the files have no labels; as in `dataset`."),
          unless_zero<&D::samples>(
              "samples", "For random, constant, clicks and shapes: number of samples; as in `dataset` if omitted.")
              .at_least(1),
      }};
  return section;
}

}  // namespace trainctl
