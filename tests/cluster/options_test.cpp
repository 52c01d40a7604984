// Options of the commands: the order of the layers, and one clear line for everything that is wrong.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "cluster/decode/decode_options.h"
#include "cluster/options/option_layers.h"
#include "cluster/prefill/prefill_options.h"
#include "core/error.h"
#include "kvstore/prefix_hash.h"
#include "tests/kvstore/temporary_folder.h"

namespace ringmark::cluster {
namespace {

using ringmark::test::TemporaryFolder;
using Arguments = std::vector<std::string>;

const std::vector<std::string> all_options = {
    "input",          "output",     "planted",     "topk",           "window",      "chunk",     "sinks",
    "choice",         "segment",    "memory",      "merge",          "balance",     "transport", "backend",
    "digest",         "scale",      "policy",      "ulysses-ranks",  "topk-chunks", "json",      "fetch-mib",
    "cu-seqlens",     "memory-gib", "deadline",    "threads",        "seed",        "quiet",     "config",
    "log-dir",        "heads",      "kv-heads",    "head-dim",       "needles",     "agreement", "topics",
    "dtype",          "help",       "kernels",     "fetch",          "share-gpu",   "trace",     "memory-plan",
    "rope",           "rope-theta", "rope-factor", "rope-original",  "rope-layout", "rope-dims", "rope-periods",
    "rope-ratio",     "reuse",      "recall",      "landmark-query", "logit-cap",   "alibi",     "softmax-zero",
    "sink-positions", "calibrate"};

// The error line of parsing, or "" when there is none.
std::string error_of(const Arguments& arguments, const Environment& environment = {}) {
  try {
    parse_prefill_options(arguments, environment);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
}

// The error line of `--planted 1k` and these further arguments.
std::string planted_error(Arguments arguments) {
  arguments.insert(arguments.begin(), {"--planted", "1k"});
  return error_of(arguments);
}

TEST(PrefillOptions, defaults_leave_the_files_metadata_in_charge) {
  const auto options = parse_prefill_options({"--input", "layer.safetensors"}, {});
  EXPECT_EQ(options.input, "layer.safetensors");
  EXPECT_FALSE(options.planted || options.policy.topk || options.policy.window || options.chunk || options.scale);
  EXPECT_FALSE(options.memory_gib || options.digest || options.quiet || options.topk_chunks);
  EXPECT_EQ(options.policy.name, "hils");
  EXPECT_EQ(options.merge, runtime::Merge::kAuto);
  EXPECT_EQ(options.transport, TransportName::kAuto);
  EXPECT_EQ(options.backend, kernels::Backend::kCpu);
  EXPECT_EQ(options.fetch_mib, std::nullopt);
  EXPECT_EQ(options.deadline_seconds, 120);
  EXPECT_EQ(options.threads, 0);
  EXPECT_TRUE(options.cu_seqlens.empty() && options.output.empty() && options.json.empty() && options.log_dir.empty());
}

TEST(PrefillOptions, reads_positions) {
  const auto options = parse_prefill_options({"--input=x", "--rope=yarn", "--rope-theta=5e5", "--rope-factor=32",
                                              "--rope-original=4k", "--rope-layout=interleaved", "--rope-dims=64"},
                                             {});
  EXPECT_EQ(options.positions.kind, kernels::PositionKind::kYarn);
  EXPECT_EQ(options.positions.theta, 5e5);
  EXPECT_EQ(options.positions.factor, 32.0);
  EXPECT_EQ(options.positions.original_length, 4096);
  EXPECT_EQ(options.positions.layout, kernels::PairLayout::kInterleaved);
  EXPECT_EQ(options.positions.rotary_dim, 64);
  EXPECT_EQ(parse_prefill_options({"--input=x"}, {}).positions.kind, kernels::PositionKind::kNone);
  const auto hope = parse_prefill_options({"--input=x", "--rope=hope", "--rope-original=8k", "--rope-periods=1"}, {});
  EXPECT_EQ(hope.positions.period_multiplier, 1.0);
  const auto partial =
      parse_prefill_options({"--input=x", "--rope=hope-partial", "--rope-original=8k", "--rope-ratio=0.25"}, {});
  EXPECT_EQ(partial.positions.kept_ratio, 0.25);
}

TEST(PrefillOptions, reads_logits) {
  const LogitOptions usual = parse_prefill_options({"--planted", "1k"}, {}).logits;
  EXPECT_FALSE(usual.cap || usual.alibi || usual.softmax_zero || usual.sink_positions);
  const LogitOptions logits =
      parse_prefill_options({"--input", "x", "--policy", "sinks", "--logit-cap", "30", "--alibi", "--softmax-zero",
                             "--rope", "rope", "--sink-positions", "cache"},
                            {})
          .logits;
  EXPECT_EQ(logits.cap, 30.0);
  EXPECT_TRUE(logits.alibi && logits.softmax_zero);
  EXPECT_EQ(logits.sink_positions, SinkPositions::kCache);
  EXPECT_NE(planted_error({"--logit-cap", "-2"}).find("logit-cap = -2 is not"), std::string::npos);
  EXPECT_EQ(planted_error({"--policy", "sinks", "--sink-positions", "ring"}),
            "--sink-positions = ring is not one of text, cache");
  EXPECT_NE(error_of({"--input", "x", "--policy", "sinks", "--sink-positions", "cache"}).find("needs --rope"),
            std::string::npos);
}

TEST(PrefillOptions, reuses_what_a_snapshot_keeps) {
  if (!kvstore::can_hash_prefixes()) {
    EXPECT_NE(error_of({"--input", "x", "--reuse", "kept"}).find("no OpenSSL"), std::string::npos);
    return;
  }
  EXPECT_EQ(parse_prefill_options({"--input", "x", "--reuse", "kept", "--balance", "rotate"}, {}).reuse, "kept");
  EXPECT_TRUE(parse_prefill_options({"--input", "x"}, {}).reuse.empty());
  EXPECT_EQ(planted_error({"--reuse", "kept"}),
            "--planted = 1k does not go with --reuse: a generated layer has no token_ids");
  EXPECT_EQ(error_of({"--input", "x", "--reuse", "kept", "--balance", "contiguous"}),
            "--balance = contiguous does not go with --reuse: limit: rotate");
  EXPECT_EQ(error_of({"--input", "x", "--reuse", "kept", "--backend", "cuda"}),
            "--backend = cuda does not go with --reuse: limit: cpu");
}

TEST(PrefillOptions, reads_every_flag) {
  const auto options = parse_prefill_options({"--planted=128k",
                                              "--topk",
                                              "8",
                                              "--window",
                                              "0",
                                              "--chunk",
                                              "32",
                                              "--sinks",
                                              "4",
                                              "--policy",
                                              "oracle",
                                              "--merge",
                                              "scores",
                                              "--balance",
                                              "contiguous",
                                              "--transport",
                                              "rma",
                                              "--backend",
                                              "reference",
                                              "--cu-seqlens",
                                              "0,64k,128k",
                                              "--scale",
                                              "0.25",
                                              "--digest",
                                              "--output",
                                              "o",
                                              "--topk-chunks",
                                              "--json",
                                              "j",
                                              "--fetch-mib",
                                              "16",
                                              "--memory-gib",
                                              "1.5",
                                              "--deadline",
                                              "2.5",
                                              "--threads",
                                              "3",
                                              "--seed",
                                              "18446744073709551615",
                                              "--quiet",
                                              "--log-dir",
                                              "logs",
                                              "--heads",
                                              "8",
                                              "--kv-heads",
                                              "2",
                                              "--head-dim",
                                              "128",
                                              "--needles",
                                              "7",
                                              "--agreement",
                                              "0.5",
                                              "--topics",
                                              "3",
                                              "--dtype",
                                              "fp32"},
                                             {});
  ASSERT_TRUE(options.planted.has_value());
  EXPECT_EQ(options.planted->tokens, 131072);
  EXPECT_EQ(options.planted->heads, 8);
  EXPECT_EQ(options.planted->kv_heads, 2);
  EXPECT_EQ(options.planted->head_dim, 128);
  EXPECT_EQ(options.planted->needles, 7);
  EXPECT_EQ(options.planted->agreement, 0.5);
  EXPECT_EQ(options.planted->topics, 3);
  EXPECT_EQ(options.planted->dtype, DType::kFloat32);
  EXPECT_EQ(options.policy.topk, 8);
  EXPECT_EQ(options.policy.window, 0);
  EXPECT_EQ(options.chunk, 32);
  EXPECT_EQ(options.policy.sinks, 4);
  EXPECT_EQ(options.policy.name, "oracle");
  EXPECT_EQ(options.merge, runtime::Merge::kScores);
  EXPECT_EQ(options.balance, partition::Balance::kContiguous);
  EXPECT_EQ(options.transport, TransportName::kRma);
  EXPECT_EQ(options.backend, kernels::Backend::kReference);
  EXPECT_EQ(options.cu_seqlens, (std::vector<std::int64_t>{0, 65536, 131072}));
  EXPECT_EQ(options.scale, 0.25);
  EXPECT_EQ(options.output, "o");
  EXPECT_EQ(options.json, "j");
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_TRUE(options.digest && options.topk_chunks && options.quiet);
  EXPECT_EQ(options.fetch_mib, 16);
  EXPECT_EQ(options.memory_gib, 1.5);
  EXPECT_EQ(options.deadline_seconds, 2.5);
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.seed, ~std::uint64_t{0});
}

TEST(PrefillOptions, flag_beats_environment_beats_config_file_beats_default) {
  const TemporaryFolder folder;
  const std::string config = folder.write("run.conf",
                                          "# a study\n"
                                          "\n"
                                          "planted = 4k\n"
                                          "topk = 1\n"
                                          "  window=1   # tokens\n"
                                          "sinks = 1\n"
                                          "head-dim = 32\n"
                                          "digest = yes\n"
                                          "quiet = false");
  const Environment environment = {
      {"RINGMARK_TOPK", "2"}, {"RINGMARK_WINDOW", "2"}, {"RINGMARK_QUIET", "1"}, {"RINGMARK_CONFIG", config}};
  const auto options = parse_prefill_options({"--topk", "3"}, environment);
  EXPECT_EQ(options.policy.topk, 3);
  EXPECT_EQ(options.policy.window, 2);
  EXPECT_EQ(options.policy.sinks, 1);
  EXPECT_FALSE(options.chunk);
  EXPECT_EQ(options.planted->tokens, 4096);
  EXPECT_EQ(options.planted->head_dim, 32);
  EXPECT_TRUE(options.digest && options.quiet);
  EXPECT_EQ(parse_prefill_options({"--config", config}, {}).policy.topk, 1);
}

TEST(PrefillOptions, variable_names_have_underscores_for_dashes) {
  const auto options = parse_prefill_options(
      {"--input", "f"}, {{"RINGMARK_FETCH_MIB", "5"}, {"RINGMARK_LOG_DIR", "logs"}, {"RINGMARK_CU_SEQLENS", "0,5"}});
  EXPECT_EQ(options.fetch_mib, 5);
  EXPECT_EQ(options.log_dir, "logs");
  EXPECT_EQ(options.cu_seqlens.size(), 2u);
}

TEST(PrefillOptions, unknown_names_get_the_nearest_known_one) {
  EXPECT_EQ(error_of({"--planted", "1k", "--topkk", "8"}), "unknown flag --topkk; did you mean --topk?");
  EXPECT_EQ(error_of({"--windwo=8"}), "unknown flag --windwo; did you mean --window?");
  EXPECT_EQ(error_of({"--fetch_mib", "8"}), "unknown flag --fetch_mib; did you mean --fetch-mib?");
  EXPECT_EQ(error_of({"--top", "8"}), "unknown flag --top; did you mean --topk?");  // no abbreviations
  EXPECT_EQ(error_of({"--completely-different"}), "unknown flag --completely-different");
  EXPECT_EQ(error_of({"-k", "8"}), "unknown flag -k");
  EXPECT_EQ(error_of({"--input", "f"}, {{"RINGMARK_TPOK", "8"}}),
            "unknown environment variable RINGMARK_TPOK; did you mean RINGMARK_TOPK?");
  EXPECT_EQ(error_of({"--input", "f"}, {{"RINGMARK_HELP", "1"}}), "unknown environment variable RINGMARK_HELP");
  EXPECT_EQ(error_of({"--input", "f"}, {{"OTHER_TOPK", "8"}}), "");
}

TEST(PrefillOptions, config_errors_name_file_and_line) {
  const TemporaryFolder folder;
  const auto config_error = [&](std::string_view text) {
    return error_of({"--planted", "1k", "--config", folder.write("c", text)});
  };
  const std::string path = folder.file("c");
  EXPECT_EQ(config_error("topk = 8\n\nwindw = 3\n"), path + ":3: unknown key windw; did you mean window?");
  EXPECT_EQ(config_error("topk = 8\ntopk = 9\n"), path + ":2: topk is given twice: 8 and 9");
  EXPECT_EQ(config_error("topk\n"), path + ":1: 'topk' is not key = value");
  EXPECT_EQ(config_error("[prefill]\n"), path + ":1: sections are not supported, only key = value");
  EXPECT_EQ(config_error("\ntopk = 9000\n"), path + ":2: topk = 9000 is not a whole number in [0, 4096]");
  EXPECT_EQ(config_error("quiet = maybe\n"),
            path + ":1: quiet = maybe is not one of true, false, 1, 0, yes, no, on, off");
  EXPECT_EQ(config_error("config = d\n"), path + ":1: unknown key config");
  EXPECT_EQ(config_error("help = true\n"), path + ":1: unknown key help");
  EXPECT_EQ(error_of({"--config", folder.file("missing")}),
            folder.file("missing") + ": cannot open: No such file or directory");
  EXPECT_EQ(error_of({"--config", folder.file("")}), folder.file("") + ": cannot read: Is a directory");
}

TEST(PrefillOptions, bad_values_name_origin_value_and_limit) {
  EXPECT_EQ(planted_error({"--topk", "9000"}), "--topk = 9000 is not a whole number in [0, 4096]");
  EXPECT_EQ(planted_error({"--topk", "-1"}), "--topk = -1 is not a whole number in [0, 4096]");
  EXPECT_EQ(planted_error({"--topk", "8x"}), "--topk = 8x is not a whole number in [0, 4096]");
  EXPECT_EQ(planted_error({"--topk", "99999999999999999999"}),
            "--topk = 99999999999999999999 is not a whole number in [0, 4096]");
  EXPECT_EQ(planted_error({"--chunk", "0"}), "--chunk = 0 is not a whole number in [1, 1024]");
  EXPECT_EQ(planted_error({"--head-dim", "257"}), "--head-dim = 257 is not a whole number in [1, 256]");
  EXPECT_EQ(planted_error({"--scale", "nan"}), "--scale = nan is not a number above 0 and at most 1000000");
  EXPECT_EQ(planted_error({"--scale", "0"}), "--scale = 0 is not a number above 0 and at most 1000000");
  EXPECT_EQ(planted_error({"--deadline", "inf"}), "--deadline = inf is not a number above 0 and at most 604800");
  EXPECT_EQ(planted_error({"--agreement", "1.01"}), "--agreement = 1.01 is not a number in [0, 1]");
  EXPECT_EQ(planted_error({"--seed", "-1"}), "--seed = -1 is not a whole number in [0, 18446744073709551615]");
  EXPECT_EQ(planted_error({"--policy", "hlis"}),
            "--policy = hlis is not one of hils, mean, oracle, landmark, moba, quest, window, sinks, xl, dense, nsa, "
            "compressive, dilated, logo");
  EXPECT_EQ(planted_error({"--merge", ""}), "--merge =  is not one of auto, scores, landmarks");
  EXPECT_EQ(planted_error({"--transport", "tcp"}),
            "--transport = tcp is not one of auto, rma, request, ucx, cuda-ipc, nccl");
  EXPECT_EQ(planted_error({"--balance", "even"}), "--balance = even is not one of contiguous, zigzag, rotate");
  EXPECT_EQ(planted_error({"--backend", "gpu"}), "--backend = gpu is not one of cpu, reference, cuda");
  EXPECT_EQ(planted_error({"--dtype", "fp8"}), "--dtype = fp8 is not one of bf16, fp16, fp32");
  EXPECT_EQ(planted_error({"--cu-seqlens", "0,,5"}),
            "--cu-seqlens = 0,,5 is not a list of whole numbers: entry 1 is ''");
  EXPECT_EQ(planted_error({"--cu-seqlens", "0,5,"}),
            "--cu-seqlens = 0,5, is not a list of whole numbers: entry 2 is ''");
  EXPECT_EQ(planted_error({"--output", ""}), "--output is empty");
  EXPECT_EQ(error_of({"--planted", "0"}), "--planted = 0 is not a whole number in [1, 1099511627776]");
  EXPECT_EQ(error_of({"--planted", "1k"}, {{"RINGMARK_TOPK", "many"}}),
            "RINGMARK_TOPK = many is not a whole number in [0, 4096]");
}

TEST(PrefillOptions, gpu_options_need_the_cuda_backend) {
  EXPECT_EQ(planted_error({"--kernels", "mma"}), "--kernels = mma has no meaning without --backend cuda");
  EXPECT_EQ(planted_error({"--share-gpu"}), "--share-gpu = true has no meaning without --backend cuda");
  EXPECT_EQ(planted_error({"--transport", "nccl"}),
            "--transport = nccl does not move the memory of --backend cpu; limit: auto, rma, request or ucx");
  EXPECT_EQ(planted_error({"--backend", "cuda", "--transport", "rma"}),
            "--transport = rma does not move the memory of --backend cuda; limit: auto, cuda-ipc or nccl");
  EXPECT_EQ(planted_error({"--backend", "cuda", "--kernels", "tpu"}),
            "--kernels = tpu is not one of auto, hopper, mma, simt");
  EXPECT_EQ(planted_error({"--backend", "cuda", "--kernels", "simt", "--share-gpu", "--transport", "cuda-ipc",
                           "--fetch", "stream", "--memory-plan", "--trace", "t.json"}),
            "");
}

TEST(PrefillOptions, blocks_spill_from_host_memory_alone) {
  const auto options = parse_prefill_options({"--planted", "1k", "--kv-budget-mib", "3", "--spill-dir", "."}, {});
  ASSERT_TRUE(options.spill().has_value());
  EXPECT_EQ(options.spill()->memory_bytes, 3 << 20);
  EXPECT_EQ(options.spill()->folder, ".");
  EXPECT_FALSE(parse_prefill_options({"--planted", "1k"}, {}).spill().has_value());
  for (const std::string backend : {"cuda", "reference"}) {
    EXPECT_EQ(error_of({"--planted", "1k", "--kv-budget-mib", "3", "--spill-dir", ".", "--backend", backend}),
              "--kv-budget-mib = 3 does not go with --backend " + backend + "; limit: cpu");
  }
  EXPECT_EQ(error_of({"--planted", "1k", "--spill-dir", "."}),
            "--kv-budget-mib MIB and --spill-dir DIR are given together or not at all");
}

TEST(PrefillOptions, exactly_one_input) {
  EXPECT_EQ(error_of({}), "neither --input FILE nor --planted TOKENS is given; exactly one is needed");
  EXPECT_EQ(error_of({"--input", "f", "--planted", "1k"}),
            "both --input = f and --planted = 1k are given; exactly one is needed");
  EXPECT_EQ(error_of({"--input", "f"}, {{"RINGMARK_PLANTED", "1k"}}),
            "both --input = f and RINGMARK_PLANTED = 1k are given; exactly one is needed");
}

TEST(PrefillOptions, options_fit_together) {
  EXPECT_EQ(planted_error({"--heads", "6", "--kv-heads", "4"}), "heads = 6 is not a multiple of kv-heads = 4");
  EXPECT_EQ(error_of({"--input", "f", "--needles", "3"}), "--needles = 3 has no meaning without --planted");
  EXPECT_EQ(error_of({"--input", "f", "--topk-chunks"}), "--topk-chunks needs --output FILE to write into");
}

TEST(PrefillOptions, misplaced_arguments) {
  EXPECT_EQ(error_of({"layer.safetensors"}), "argument 'layer.safetensors' belongs to no flag");
  EXPECT_EQ(error_of({"--topk", "8", "--topk", "9"}), "--topk is given twice: 8 and 9");
  EXPECT_EQ(error_of({"--input"}), "the required argument for option '--input' is missing");
  EXPECT_EQ(error_of({"--input", "--topk", "8"}), "--input has no value: --topk follows");
  EXPECT_NE(error_of({"--quiet=yes"}), "");
}

TEST(PrefillOptions, help_mentions_every_option_on_narrow_lines) {
  const std::string help = prefill_help();
  for (const std::string& option : all_options)
    EXPECT_NE(help.find("  --" + option + " "), std::string::npos) << option;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  for (const char* text :
       {"Input", "Attention", "Execution", "Output", "Planted input", "RINGMARK_HEAD_DIM", "mpirun"}) {
    EXPECT_NE(help.find(text), std::string::npos) << text;
  }
}

TEST(PrefillOptions, every_option_with_a_value_is_a_variable) {
  for (const std::string& option : all_options) {
    if (option == "help" || option == "config") continue;
    std::string variable = "RINGMARK_";
    for (const char c : option) variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
    const std::string error = error_of({}, {{variable, "\1"}});
    EXPECT_EQ(error.find("unknown"), std::string::npos) << error;
  }
}

TEST(NearestName, counts_edits_and_refuses_far_names) {
  const std::vector<std::string> names = {"prefill", "topk", "topics", "heads", "kv-heads"};
  EXPECT_EQ(nearest_name("prefil", names), "prefill");
  EXPECT_EQ(nearest_name("perfill", names), "prefill");
  EXPECT_EQ(nearest_name("tokp", names), "topk");
  EXPECT_EQ(nearest_name("topic", names), "topics");
  EXPECT_EQ(nearest_name("head", names), "heads");
  EXPECT_EQ(nearest_name("kvheads", names), "kv-heads");
  EXPECT_EQ(nearest_name("decode", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(suggestion("tokp", names, "--"), "; did you mean --topk?");
  EXPECT_EQ(suggestion("decode", names), "");
}

std::string decode_error(const Arguments& arguments) {
  Arguments all = {"--snapshot", "kept", "--input", "f"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  try {
    parse_decode_options(all, {});
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    return error.what();
  }
}

TEST(DecodeOptions, defaults) {
  const auto options = parse_decode_options({"--snapshot", "kept", "--input", "f"}, {});
  EXPECT_EQ(options.rows, 1);
  EXPECT_EQ(options.skip, 0);
  EXPECT_EQ(options.exchange, runtime::Exchange::kAuto);
  EXPECT_EQ(options.transport, TransportName::kAuto);
  EXPECT_EQ(options.backend, kernels::Backend::kCpu);
  EXPECT_FALSE(options.kv_format || options.cache_mib || options.kv_budget_mib || options.memory_bytes());
  EXPECT_FALSE(options.save || options.digest || options.quiet);
  EXPECT_EQ(options.deadline_seconds, 120);
}

TEST(DecodeOptions, refuses_what_it_cannot_mean) {
  EXPECT_EQ(decode_error({"--rows", "0"}), "--rows = 0 is not a whole number in [1, 1048576]");
  EXPECT_EQ(decode_error({"--exchange", "both"}), "--exchange = both is not one of auto, pull, push");
  EXPECT_EQ(decode_error({"--transport", "nccl"}),
            "--transport = nccl does not move the memory of --backend cpu; limit: auto, rma, request or ucx");
  EXPECT_EQ(decode_error({"--kv-dtype", "int2"}),
            "--kv-dtype = int2 is not one of as-input, bf16, fp16, fp8, int8, int4");
  EXPECT_EQ(decode_error({"--cache-mib", "0"}), "--cache-mib = 0 is not a whole number in [1, 1048576]");
  EXPECT_EQ(decode_error({"--kv-budget-mib", "1"}),
            "--kv-budget-mib MIB and --spill-dir DIR are given together or not at all");
  EXPECT_EQ(decode_error({"--kv-budget-mib", "1", "--spill-dir", "nowhere"}), "--spill-dir = nowhere is no folder");
}

TEST(DecodeOptions, a_gpu_keeps_blocks_as_they_came_in_and_in_its_memory) {
  EXPECT_EQ(decode_error({"--backend", "reference"}), "--backend = reference is not one of cpu, cuda");
  EXPECT_EQ(decode_error({"--share-gpu"}), "--share-gpu = true has no meaning without --backend cuda");
  EXPECT_EQ(decode_error({"--backend", "cuda", "--exchange", "push"}),
            "--exchange = push does not go with --backend cuda; limit: auto or pull");
  EXPECT_EQ(decode_error({"--backend", "cuda", "--kv-dtype", "int8"}),
            "--kv-dtype = int8 does not go with --backend cuda; limit: as-input");
  EXPECT_EQ(decode_error({"--backend", "cuda", "--kv-budget-mib", "8", "--spill-dir", "/tmp"}),
            "--kv-budget-mib = 8 does not go with --backend cuda; limit: not given");
  EXPECT_EQ(decode_error({"--backend", "cuda", "--transport", "rma"}),
            "--transport = rma does not move the memory of --backend cuda; limit: auto, cuda-ipc or nccl");
  EXPECT_EQ(decode_error({"--backend", "cuda", "--share-gpu", "--transport", "nccl", "--exchange", "pull", "--kv-dtype",
                          "as-input"}),
            "");
}

TEST(Environment, variables_of_other_commands_are_left_out) {
  const Environment all = {{"RINGMARK_TOPK", "4"}, {"RINGMARK_DEADLINE", "5"}, {"RINGMARK_TOPKK", "6"}};
  const Environment own = without_others(all, decode_descriptions(), prefill_descriptions());
  EXPECT_EQ(own, (Environment{{"RINGMARK_DEADLINE", "5"}, {"RINGMARK_TOPKK", "6"}}));
}

TEST(Environment, holds_only_our_variables) {
  ASSERT_EQ(::setenv("RINGMARK_TOPK", "a=b", 1), 0);
  ASSERT_EQ(::setenv("XRINGMARK_TOPK", "c", 1), 0);
  const Environment found = ringmark_environment();
  EXPECT_EQ(found.at("RINGMARK_TOPK"), "a=b");
  for (const auto& [name, text] : found) EXPECT_TRUE(name.starts_with("RINGMARK_")) << name << text;
  ::unsetenv("RINGMARK_TOPK");
  ::unsetenv("XRINGMARK_TOPK");
}

}  // namespace
}  // namespace ringmark::cluster
