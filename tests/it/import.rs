//! Models of other projects imported as runs: every family is accepted, everything works on it, and a model that does
//! not fit is rejected.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};
use tinderbox::interop::layout::ForeignTensor;
use tinderbox::interop::{Family, ForeignModel};
use tinderbox::tokenizer::Tokenizer;

use crate::fixtures::{Folder, Model, StoredTensor, bits, characters, families, fs};

/// The problems of a model with these keys in its `config.json`.
fn problems(family: &str, keys: Value) -> Vec<String> {
    let said = Model::of(family).set(keys).error();
    said.lines().filter_map(|line| line.strip_prefix("  - ")).map(str::to_owned).collect()
}

#[test]
fn names_of_older_versions_are_read() {
    for family in families() {
        let model = Model::of(&family);
        let source = model.open();
        let expected = bits(&source);
        let layout = source.layout();
        let named = |path: &str| {
            let is_whole = |tensor: &&ForeignTensor| tensor.columns.iter().any(|it| it.path == path);
            layout.iter().find(is_whole).map(|tensor| &tensor.name)
        };
        let (embedding, output) =
            (named("token_embedding.weight").expect("every model has one"), named("output.weight"));
        // The base model saved by itself, with masks and RoPE frequencies.
        model.change(|tensors| {
            let shorter = |(name, held): (String, StoredTensor)| match name.split_once('.') {
                Some((_, rest)) if Some(&name) != output => (rest.to_owned(), held),
                _ => (name, held),
            };
            let tied = source.config.tie_embeddings.then(|| tensors[embedding].clone());
            *tensors = std::mem::take(tensors).into_iter().map(shorter).collect();
            let mask = StoredTensor { dtype: Dtype::BOOL, shape: vec![2], bytes: vec![0, 1] };
            for name in ["h.0.attn.bias", "layers.1.attention.masked_bias", "layers.0.self_attn.rotary_emb.inv_freq"] {
                tensors.insert(name.to_owned(), mask.clone());
            }
            tensors.extend(tied.map(|held| ("lm_head.weight".to_owned(), held))); // although it is tied
        });
        assert!(bits(&model.open()) == expected, "{family}");
    }
}

#[test]
fn imported_generation_settings_apply() {
    let folder = Folder::new();
    let model = Model::for_gguf("llama");
    let written = |generation: Value| {
        model.write("generation_config.json", generation.to_string());
        folder.succeed(&["import", model.path().to_str().expect("UTF-8"), "--run-dir", "runs/it", "--overwrite"]);
        (folder.succeed(&["generate", "runs/it", "--prompt", "b"]), folder.read("runs/it/config.toml"))
    };
    let (free, config) = written(json!({ "eos_token_id": 63, "do_sample": false, "max_new_tokens": 8 }));
    let free = free.trim_end_matches('\n');
    assert_eq!(free.chars().count(), 1 + 8, "{free:?}");
    assert!(config.contains("temperature = 0.0") && config.contains("stop_token_ids = [63]"), "{config}");
    let letter = free.chars().nth(4).expect("a completion of eight characters");
    let id = characters().encode(&letter.to_string()).expect("a character")[0];
    let (stopped, _) = written(json!({ "eos_token_id": [id, 63], "do_sample": false, "max_new_tokens": 8 }));
    let end = 1 + free[1..].find(letter).expect("it is there");
    assert_eq!(stopped.strip_suffix('\n'), Some(&free[..end]), "{free:?}");
    // Where nothing is said of sampling, a model that chats takes the likeliest token, as in transformers.
    let silent = json!({ "max_new_tokens": 8 });
    let (_, continues) = written(silent.clone());
    model.write("tokenizer_config.json", json!({ "chat_template": "{{ messages }}" }).to_string());
    let (_, chats) = written(silent);
    assert!(continues.contains("temperature = 0.8") && chats.contains("temperature = 0.0"), "{continues}\n{chats}");
}

#[test]
fn sharded_models_are_read() {
    let model = Model::of("llama");
    let expected = bits(&model.open());
    let tensors = model.tensors();
    model.remove("model.safetensors");
    let mut weight_map = BTreeMap::new();
    for (file, odd) in [("a.safetensors", 0), ("b.safetensors", 1)] {
        let part = tensors.clone().into_iter().enumerate().filter(|(i, _)| i % 2 == odd).map(|(_, it)| it).collect();
        model.write_tensors(file, &part);
        weight_map.extend(part.into_keys().map(|name| (name, file)));
    }
    model.write("model.safetensors.index.json", json!({ "metadata": {}, "weight_map": weight_map }).to_string());
    assert!(bits(&model.open()) == expected);

    model.write_tensors("b.safetensors", &tensors);
    assert!(model.error().contains("another file of the folder has `"), "{}", model.error());
    for name in ["/b.safetensors", "c/../../b.safetensors"] {
        model.write("model.safetensors.index.json", json!({ "weight_map": { "x": name } }).to_string());
        assert!(
            model.error().contains(&format!("names `{name}`, which is outside of the folder")),
            "{}",
            model.error()
        );
    }
    model.write("model.safetensors.index.json", json!({ "weight_map": { "x": 3 } }).to_string());
    assert!(model.error().contains("does not name the files of tensors"), "{}", model.error());
}

#[test]
fn double_precision_and_padding_without_row_are_read() {
    let model = Model::of("llama");
    let expected = bits(&model.open());
    model.change(|tensors| {
        for held in tensors.values_mut() {
            let numbers = held.bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")));
            held.bytes = numbers.flat_map(|x| f64::from(x).to_le_bytes()).collect();
            held.dtype = Dtype::F64;
        }
    });
    assert!(bits(&model.open()) == expected);

    // The tokens that published models pad batches with, and no others, may lack a row.
    let folder = Folder::new();
    let rows = 62; // as many as the tokenizer has tokens
    model.set(json!({ "vocab_size": rows })).change(|tensors| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let held = tensors.get_mut(name).expect("every Llama has it");
            held.bytes.truncate(rows * held.shape[1] * 8);
            held.shape[0] = rows;
        }
    });
    let path = model.path().to_str().expect("UTF-8");
    let arguments = ["import", path, "--run-dir", "runs/it", "--overwrite"];
    let mut file: Value = serde_json::from_str(&model.open().tokenizer.json).expect("JSON");
    let mut add = |id: usize, content: &str, config: Value| {
        let token = json!({
            "id": id, "content": content, "special": true, "normalized": false, "single_word": false, "lstrip": false,
            "rstrip": false,
        });
        file["added_tokens"].as_array_mut().expect("a list").push(token);
        model.write("tokenizer.json", file.to_string());
        model.write("tokenizer_config.json", config.to_string());
    };
    add(rows, "[PAD]", json!({ "pad_token": { "content": "[PAD]" } }));
    let said = folder.run(&arguments).exits(0).stderr;
    assert!(said.contains("left out the token \"[PAD]\""), "{said}");
    assert!(!folder.read("runs/it/tokenizer.json").contains("[PAD]"));
    folder.succeed(&["generate", "runs/it", "--prompt", "b"]);
    add(rows + 1, "<|end|>", json!({ "pad_token": "[PAD]", "eos_token": "<|end|>" }));
    let said = folder.fail(&arguments);
    assert!(said.contains(&format!("the tokenizer has {} ids, and each needs a row", rows + 2)), "{said}");
    assert!(said.contains("resize_token_embeddings"), "{said}");
}

#[cfg(unix)]
#[test]
fn links_out_of_folder_are_refused_except_in_hub_cache() {
    use std::os::unix::fs::symlink;
    let model = Model::of("llama");
    let other = Model::of("llama");
    model.remove("model.safetensors");
    symlink(other.path().join("model.safetensors"), model.path().join("model.safetensors"))
        .expect("the link can be made");
    assert!(model.error().contains("names `model.safetensors`, which is outside of the folder"), "{}", model.error());

    let cache = tempfile::tempdir().expect("a temporary directory");
    let [blobs, snapshot] = ["blobs", "snapshots/3f2a"].map(|name| cache.path().join("models--a--b").join(name));
    fs::create_dir_all(&blobs);
    fs::create_dir_all(&snapshot);
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(other.path().join(file), blobs.join(file));
        symlink(Path::new("../../blobs").join(file), snapshot.join(file)).expect("the link can be made");
    }
    let source = ForeignModel::open(&snapshot).unwrap_or_else(|error| panic!("{error}"));
    assert!(bits(&source) == bits(&other.open()));
}

#[test]
fn unsupported_config_lists_every_key() {
    let keys = json!({
        "hidden_act": "gelu", "attention_bias": true, "partial_rotary_factor": 0.5, "max_position_embeddings": -1,
        "rope_parameters": { "rope_type": "dynamic", "factor": 4.0, "rope_theta": "high" },
        "quantization_config": { "quant_method": "gptq", "bits": 4 }, "rms_norm_eps": null, "vocab_size": null,
    });
    let expected = [
        r#"quantization_config = {"quant_method":"gptq","bits":4}: weights in f32, f16 or bf16 are supported"#,
        "max_position_embeddings = -1: a whole number above 0 is expected",
        "mlp_bias = false: true is supported, as attention_bias is",
        r#"hidden_act = "gelu": "silu", "swish" are supported"#,
        r#"rope_parameters.rope_theta = "high": a number is expected"#,
        r#"rope_parameters.rope_type = "dynamic": "default", "linear", "llama3", "yarn", "longrope" are supported"#,
        "partial_rotary_factor = 0.5: 1 is supported",
        "vocab_size is missing",
    ];
    assert_eq!(problems("llama", keys), expected);
    let keys = json!({ "sliding_window": 0, "rope_scaling": { "type": "dynamic", "factor": 2.0 } });
    let expected = [
        "sliding_window = 0: a whole number above 0 is expected",
        r#"rope_scaling.type = "dynamic": "default", "linear", "llama3", "yarn", "longrope" are supported"#,
    ];
    assert_eq!(problems("mistral", keys), expected);
    let keys = json!({ "use_sliding_window": false, "layer_types": ["full_attention", "sliding_attention"] });
    let expected = [
        r#"layer_types = ["full_attention","sliding_attention"]: a list of "full_attention", as many as num_hidden_layers, is supported"#,
    ];
    assert_eq!(problems("qwen2", keys), expected);
    let problem = problems("smollm3", json!({ "no_rope_layers": [1, 0] }));
    assert_eq!(problem, ["no_rope_layers = [1,0]: a list of 0 and 1, as many as num_hidden_layers, is supported"]);
    let windows = |family: &str, keys: Value| Model::of(family).set(keys).open().config.attention_window;
    assert_eq!(windows("mistral_windows", json!({})), [5]);
    assert_eq!(
        windows("mistral_windows", json!({ "sliding_window": 16 })),
        Vec::<usize>::new(),
        "it restricts nothing"
    );
    assert_eq!(windows("qwen2_windows", json!({})), [0, 4, 4]);
    let by_number = json!({ "layer_types": null, "max_window_layers": 2 });
    assert_eq!(windows("qwen2_windows", by_number), [0, 0, 4], "as older versions wrote it");
    let keys = json!({
        "scale_attn_by_inverse_layer_idx": true, "scale_attn_weights": false, "n_head": 3, "add_cross_attention": true,
        "activation_function": "relu",
    });
    let expected = [
        "add_cross_attention = true: false is supported",
        "scale_attn_weights = false: true is supported",
        "scale_attn_by_inverse_layer_idx = true: false is supported",
        "n_embd = 16: it must be divisible by n_head = 3",
        r#"activation_function = "relu": "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu" are supported"#,
    ];
    assert_eq!(problems("gpt2", keys), expected);
    let found = problems("gpt_neo", json!({ "attention_types": [[["global", "far"], 1]] }));
    let why = r#"a list of "global" and "local", as many as num_layers, is supported"#;
    assert_eq!(found, [format!(r#"attention_types = [[["global","far"],1]]: {why}"#)]);
    let found = problems("gpt_neo", json!({ "attention_types": [[["global", "local"], 1_000_000_000_000_u64]] }));
    assert!(found[0].contains("attention_types = "), "{found:?}");
    let found = problems("gpt_neox", json!({ "attention_bias": false, "rotary_pct": 2.0 }));
    assert_eq!(found, ["attention_bias = false: true is supported"]);
    let found = problems("llama", json!({ "model_type": null }));
    assert_eq!(found, [format!("model_type is missing: {} are supported", Family::names())]);
    let found = problems("gpt_neox", json!({ "model_type": "gemma3" }));
    assert_eq!(found, [format!(r#"model_type = "gemma3": {} are supported"#, Family::names())]);
}

#[test]
fn contradicting_settings_are_refused() {
    let llama3 = |factor: f64| {
        json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        })
    };
    let mut parameters = llama3(2.0);
    parameters["rope_theta"] = 500.0.into();
    let both = |scaling: Value| json!({ "rope_parameters": parameters, "rope_scaling": scaling });
    let why = "rope_parameters says otherwise, and only one of the two is supported";
    for other in [llama3(4.0), json!({ "rope_type": "linear", "factor": 2.0 }), json!({ "rope_type": "default" })] {
        assert_eq!(problems("llama", both(other.clone())), [format!("rope_scaling = {other}: {why}")]);
    }
    let theta = json!({ "rope_type": "llama3", "rope_theta": 10_000.0 });
    assert!(problems("llama", both(theta)).iter().any(|problem| problem.ends_with(why)));
    let alone = Model::of("llama").set(json!({ "rope_parameters": parameters, "rope_scaling": null })).open().config;
    for same in [llama3(2.0), parameters.clone(), json!({})] {
        assert_eq!(Model::of("llama").set(both(same)).open().config, alone);
    }
    assert!(alone.rope_scaling.is_some() && (alone.rope_theta - 500.0).abs() < 1e-9, "{alone:?}");

    let why = "and only one of the two is supported";
    let found = problems("llama", json!({ "rope_parameters": parameters, "rope_theta": 100.0 }));
    assert_eq!(found, [format!("rope_parameters.rope_theta = 500.0: beside the table it is 100.0, {why}")]);
    let found = problems("phi3_longrope", json!({ "original_max_position_embeddings": 16 }));
    let key = "rope_scaling.original_max_position_embeddings";
    assert_eq!(found, [format!("{key} = 8: beside the table it is 16, {why}")]);

    let windows = Model::of("gpt_neo").open().config;
    let layers: Vec<&str> =
        (0..windows.n_layers).map(|i| windows.attention_window_of(i).map_or("global", |_| "local")).collect();
    let mut others = layers.clone();
    others.rotate_left(1);
    let types = json!([[layers, 1]]);
    let set = |layers: Value| json!({ "attention_types": types, "attention_layers": layers });
    let why = "attention_types says otherwise, and both must be the same";
    for others in [json!(others), json!([]), json!("local")] {
        assert_eq!(problems("gpt_neo", set(others.clone())), [format!("attention_layers = {others}: {why}")]);
    }
    assert_eq!(Model::of("gpt_neo").set(set(json!(layers))).open().config, windows);
}

#[test]
fn differing_tied_output_is_refused() {
    let tied = families().into_iter().filter(|family| Model::of(family).open().config.tie_embeddings);
    for family in tied {
        let model = Model::of(&family);
        let layout = model.open().layout();
        let is_embedding =
            |tensor: &&ForeignTensor| tensor.columns.iter().any(|columns| columns.path == "token_embedding.weight");
        let embedding = layout.iter().find(is_embedding).expect("every model has one").name.clone();
        let output = if family == "gpt_neox" { "embed_out.weight" } else { "lm_head.weight" };
        model.change(|tensors| {
            let mut held = tensors[&embedding].clone();
            held.bytes[0] ^= 1; // the last bit of one number
            tensors.insert(output.to_owned(), held);
        });
        let said = model.error();
        assert!(said.contains(&format!("its config ties `{output}` to `{embedding}`, but they differ")), "{said}");
        assert!(said.contains("\n  hint: set tie_word_embeddings to false in its config.json"), "{said}");
        model.set(json!({ "tie_word_embeddings": false }));
        assert!(!model.open().config.tie_embeddings);
    }
}

#[test]
fn import_refuses_unreadable_tokenizer() {
    let folder = Folder::new();
    let model = Model::of("llama");
    model.write("tokenizer_config.json", r#"{ "eos_token": 3, "bos_token": "a", "bos_token": "b" }"#);
    let path = model.path().to_str().expect("UTF-8");
    let said = folder.fail(&["import", path, "--run-dir", "run"]);
    assert!(said.contains("tokenizer_config.json` is not a tokenizer_config.json: "), "{said}");
    assert!(!folder.path("run").exists());

    // Of a key that is there twice, the last one counts, as for transformers; also in a run.
    let twice = r#"{ "eos_token": "a", "eos_token": "b", "bos_token": {"content": "a", "content": "b"} }"#;
    model.write("tokenizer_config.json", twice);
    folder.succeed(&["import", path, "--run-dir", "run"]);
    for config in [folder.read("run/tokenizer_config.json"), twice.to_owned()] {
        folder.write("run/tokenizer_config.json", config);
        let tokenizer =
            Tokenizer::from_file(&folder.path("run/tokenizer.json")).unwrap_or_else(|error| panic!("{error}"));
        let ends = [tokenizer.end_of_text(), tokenizer.bos_token()].map(|id| tokenizer.piece(id.expect("a token")));
        assert_eq!(ends, ["b", "b"]);
    }
}

#[test]
fn sentencepiece_tokenizer_is_read() {
    let folder = Folder::new();
    let model = Model::with_sentencepiece();
    let import = |from: &str, run: &str| {
        folder.succeed(&["import", from, "--run-dir", run, "--overwrite"]);
        let path = folder.path(run).join("tokenizer.json");
        Tokenizer::from_file(&path).unwrap_or_else(|error| panic!("{error}"))
    };
    let path = model.path().to_str().expect("UTF-8");
    let name = |tokenizer: &Tokenizer, id: Option<u32>| id.map(|id| tokenizer.piece(id));
    let tokenizer = import(path, "runs/it");
    let text = "  The girl\n\n \u{1f525} \u{65e5}<sep>";
    let ids = tokenizer.encode(text).expect("any text has ids");
    assert_eq!(tokenizer.decode(&ids), text);
    assert_eq!(ids.last(), Some(&3), "<sep>");
    assert_eq!(name(&tokenizer, tokenizer.bos()).as_deref(), Some("<s>"), "no key says otherwise");
    assert_eq!(name(&tokenizer, tokenizer.end_of_text()).as_deref(), Some("</s>"));
    folder.succeed(&["generate", "runs/it", "--prompt", "The girl", "--max-new-tokens", "4"]);

    // A GGUF file has scores, too. In llama.cpp the user's symbols have other spaces around them: it gets none.
    let refused = folder.run(&["export", "runs/it", "--to", "gguf", "--output", "it.gguf"]).exits(1);
    assert!(refused.stderr.contains("no pre-tokenizer like its Split"), "{}", refused.stderr);
    let file = model.path().join("tokenizer.model");
    let mut bytes = fs::read(&file);
    let piece = b"\x0a\x05<sep>\x15\0\0\0\0\x18"; // the number after it is its type
    let at = bytes.windows(piece.len()).position(|window| window == piece).expect("<sep> is a piece") + piece.len();
    assert_eq!(std::mem::replace(&mut bytes[at], 3), 4, "CONTROL instead of USER_DEFINED");
    fs::write(&file, bytes);
    assert_eq!(import(path, "runs/it").encode(text).expect("any text has ids"), ids);
    folder.succeed(&["export", "runs/it", "--to", "gguf", "--output", "it.gguf"]);
    let again = import("it.gguf", "runs/again");
    assert_eq!(again.encode(text).expect("any text has ids"), ids);

    let config = json!({ "add_bos_token": false, "eos_token": { "content": "<|im_end|>" }, "added_tokens_decoder": {
        "520": { "content": "<|im_end|>", "special": true },
    }});
    model.write("tokenizer_config.json", config.to_string());
    let tokenizer = import(path, "runs/it");
    assert_eq!((tokenizer.bos(), tokenizer.end_of_text()), (None, Some(520)));
}

#[test]
fn files_beside_tokenizer_are_imported() {
    let model = Model::of("llama");
    model.write("chat_template.jinja", "{{ messages }}");
    model.write("tokenizer_config.json", json!({ "bos_token": null, "model_max_length": 7 }).to_string());
    model.write("special_tokens_map.json", json!({ "bos_token": "a" }).to_string());
    let config = model.open().tokenizer.config.expect("there is one");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let (bos, end) = ("a", "<|endoftext|>"); // the end is the one whose id is in config.json
    let expected =
        json!({ "bos_token": bos, "eos_token": end, "model_max_length": 7, "chat_template": "{{ messages }}" });
    assert_eq!(config, expected);
    model.write("additional_chat_templates/tool_use.jinja", "{{ tools }}");
    let config = model.open().tokenizer.config.expect("there is one");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let named = |name: &str, template: &str| json!({ "name": name, "template": template });
    assert_eq!(config["chat_template"], json!([named("default", "{{ messages }}"), named("tool_use", "{{ tools }}")]));
}
