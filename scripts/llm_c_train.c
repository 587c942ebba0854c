// Training steps of a GPT in llm.c on this machine's CPU, for scripts/compare_pytorch.sh.
//
//     git clone https://github.com/karpathy/llm.c      # written for commit f1e2ace, of May 2025
//     gcc -Ofast -march=native -fopenmp -DOMP -w -I llm.c llm_c_train.c -o llm_c_train -lm
//     ./llm_c_train CORPUS STEPS BATCH_SIZE CONTEXT N_LAYERS N_HEADS D_MODEL
//
// The same measurement as torch_gpt.py with llm.c's train_gpt2.c, which works in f32: random weights, batches from the
// characters of an ASCII corpus, AdamW. The model is llm.c's GPT-2, whose layers have biases and whose vocabulary is
// padded; gradients are not clipped. Prints one JSON object: the loss of the last step, the median time of a step,
// tokens per second in it and the peak memory of the process. A step runs from drawing its batch to the updated
// weights; five more before the first do not count.

#define TESTING // leaves out llm.c's own main
#include "train_gpt2.c"

#include <omp.h>
#include <sys/resource.h>

#define WARM_UP 5
#define PADDED_TO 128 // the vocabulary of llm.c's checkpoints: a multiple of this

// The arguments after the corpus, in their order.
enum { STEPS, BATCH_SIZE, CONTEXT, N_LAYERS, N_HEADS, D_MODEL, N_SIZES };

typedef struct {
    unsigned char* ids; // of the training split, the first 90 %
    size_t n_ids;
    int vocab_size;
} Corpus;

typedef struct {
    size_t batch_size;
    size_t context;
    int* inputs;  // [B, T]
    int* targets; // [B, T]
} Batch;

static Corpus read_corpus(const char* path) {
    FILE* file = fopenCheck(path, "rb");
    fseekCheck(file, 0, SEEK_END);
    size_t n_bytes = ftell(file);
    fseekCheck(file, 0, SEEK_SET);
    unsigned char* text = mallocCheck(n_bytes);
    freadCheck(text, 1, n_bytes, file);
    fcloseCheck(file);

    int occurs[256] = {0}, id_of[256], vocab_size = 0;
    for (size_t i = 0; i < n_bytes; i++) { occurs[text[i]] = 1; }
    for (int byte = 0; byte < 256; byte++) { id_of[byte] = occurs[byte] ? vocab_size++ : -1; }
    for (size_t i = 0; i < n_bytes; i++) { text[i] = id_of[text[i]]; }
    return (Corpus){.ids = text, .n_ids = n_bytes / 10 * 9, .vocab_size = vocab_size};
}

static void fill(float* values, size_t n, float value) {
    for (size_t i = 0; i < n; i++) { values[i] = value; }
}

// Takes the place of gpt2_build_from_checkpoint: GPT-2's random weights; biases and padding are 0.
static GPT2 random_model(GPT2Config config, mt19937_state* rng) {
    GPT2 model = {.config = config, .mean_loss = -1.0f};
    size_t* sizes = model.param_sizes; // in the order of ParameterTensors
    fill_in_parameter_sizes(sizes, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model.num_parameters += sizes[i]; }
    model.params_memory = malloc_and_point_parameters(&model.params, sizes);
    fill(model.params_memory, model.num_parameters, 0.0f);

    ParameterTensors params = model.params;
    float std = 0.02f, std_to_residual = std / sqrtf(2.0f * config.num_layers);
    normal_(params.wte, config.vocab_size * config.channels, 0.0f, std, rng);
    normal_(params.wpe, sizes[1], 0.0f, std, rng);
    fill(params.ln1w, sizes[2], 1.0f);
    normal_(params.qkvw, sizes[4], 0.0f, std, rng);
    normal_(params.attprojw, sizes[6], 0.0f, std_to_residual, rng);
    fill(params.ln2w, sizes[8], 1.0f);
    normal_(params.fcw, sizes[10], 0.0f, std, rng);
    normal_(params.fcprojw, sizes[12], 0.0f, std_to_residual, rng);
    fill(params.lnfw, sizes[14], 1.0f);
    return model;
}

static void draw(Batch* batch, const Corpus* corpus, mt19937_state* rng) {
    for (size_t b = 0; b < batch->batch_size; b++) {
        const unsigned char* window = corpus->ids + randint32(rng) % (corpus->n_ids - batch->context);
        for (size_t t = 0; t < batch->context; t++) {
            batch->inputs[b * batch->context + t] = window[t];
            batch->targets[b * batch->context + t] = window[t + 1];
        }
    }
}

static double now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * now.tv_sec + now.tv_nsec / 1e6;
}

// Trains for one step, the `step_idx`-th, and returns the milliseconds that it took.
static double train_step(GPT2* model, Batch* batch, const Corpus* corpus, mt19937_state* rng, int step_idx) {
    double began = now_ms();
    draw(batch, corpus, rng);
    gpt2_forward(model, batch->inputs, batch->targets, batch->batch_size, batch->context);
    gpt2_zero_grad(model);
    gpt2_backward(model);
    gpt2_update(model, 1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, step_idx + 1);
    return now_ms() - began;
}

static int ascending(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* values, int n) {
    qsort(values, n, sizeof(double), ascending);
    return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

// Linux counts KiB, and from the peak of the shell that started the process, which is below that of any model.
static double peak_rss_mib(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss / 1024.0;
}

// llm.c prints sizes, and its errors, to standard output, which is for the report alone.
static FILE* take_stdout(void) {
    FILE* report = fdopen(dup(STDOUT_FILENO), "w");
    dup2(STDERR_FILENO, STDOUT_FILENO);
    return report;
}

static GPT2Config gpt2_config(int vocab_size, const int* sizes) {
    return (GPT2Config){.vocab_size = vocab_size,
                        .padded_vocab_size = (vocab_size + PADDED_TO - 1) / PADDED_TO * PADDED_TO,
                        .max_seq_len = sizes[CONTEXT],
                        .num_layers = sizes[N_LAYERS],
                        .num_heads = sizes[N_HEADS],
                        .channels = sizes[D_MODEL]};
}

static int run(const char* corpus_path, const int* sizes, FILE* report) {
    Corpus corpus = read_corpus(corpus_path);
    size_t n_tokens = (size_t)sizes[BATCH_SIZE] * sizes[CONTEXT];
    Batch batch = {.batch_size = sizes[BATCH_SIZE], .context = sizes[CONTEXT],
                   .inputs = mallocCheck(n_tokens * sizeof(int)), .targets = mallocCheck(n_tokens * sizeof(int))};
    if (corpus.n_ids <= batch.context) {
        fprintf(stderr, "`%s` is too short for a context of %zu\n", corpus_path, batch.context);
        return 1;
    }
    mt19937_state rng;
    manual_seed(&rng, 1337);
    GPT2 model = random_model(gpt2_config(corpus.vocab_size, sizes), &rng);

    for (int i = 0; i < WARM_UP; i++) { train_step(&model, &batch, &corpus, &rng, i); }
    double* times_ms = mallocCheck(sizes[STEPS] * sizeof(double));
    for (int i = 0; i < sizes[STEPS]; i++) {
        times_ms[i] = train_step(&model, &batch, &corpus, &rng, WARM_UP + i);
    }
    double median_ms = median(times_ms, sizes[STEPS]);
    fprintf(report, "{\"threads\": %d, \"steps\": %d, \"vocab_size\": %d, \"parameters\": %zu, \"loss\": %.6f, ",
            omp_get_max_threads(), sizes[STEPS], corpus.vocab_size, model.num_parameters, model.mean_loss);
    fprintf(report, "\"median_step_ms\": %.6f, \"tokens_per_s\": %.3f, \"peak_rss_mib\": %.3f}\n", median_ms,
            n_tokens * 1e3 / median_ms, peak_rss_mib());
    return fclose(report) == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
    int sizes[N_SIZES] = {0};
    for (int i = 0; i < N_SIZES; i++) {
        if (argc == 2 + N_SIZES) { sizes[i] = atoi(argv[2 + i]); }
        if (sizes[i] < 1) {
            fprintf(stderr, "usage: %s CORPUS STEPS BATCH_SIZE CONTEXT N_LAYERS N_HEADS D_MODEL\n", argv[0]);
            return 2;
        }
    }
    return run(argv[1], sizes, take_stdout());
}
