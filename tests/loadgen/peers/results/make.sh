#!/usr/bin/env bash
# Makes the result files here again: each tool sends 20 requests at the built-in endpoint, which answers by script.jsonl.
# usage: make.sh PYTHON TOKENIZER VLLM_VENV GUIDELLM_VENV AIPERF_VENV INFERENCE_PERF_VENV OUT
# (guidellm 0.8.1, aiperf 0.13.0, inference-perf 0.7.0, vllm 0.32.0; PYTHON runs loadgen)
set -euo pipefail
python=$1 tokenizer=$2 vllm=$3 guidellm=$4 aiperf=$5 inference_perf=$6 out=$(realpath "$7")
here=$(cd "$(dirname "$0")" && pwd)
port=18952 url=http://127.0.0.1:18952
cp "$tokenizer"/{tokenizer.json,tokenizer_config.json,config.json} "$out"/ # aiperf wants a folder that it can name

with_simulator() { # NAME COMMAND...: the truth goes to NAME-truth.jsonl
    local name=$1; shift
    rm -f "$out/$name-truth.jsonl"
    "$python" -m loadgen simulate --port $port --model tiny --script "$here/script.jsonl" \
        --truth-log "$out/$name-truth.jsonl" & local pid=$!
    until curl -fs $url/health >/dev/null; do sleep 0.2; done
    ( cd "$out" && timeout -s KILL 250 "$@" >"$out/$name.log" 2>&1 ) || echo "$name ended with $?"
    kill $pid; wait $pid || true
}

run_vllm() { # two answers end in an error, which is what is wanted
    with_simulator vllm "$vllm/bin/python" -m vllm.entrypoints.cli.main bench serve --backend openai-chat \
        --base-url $url --endpoint /v1/chat/completions --model tiny --tokenizer "$tokenizer" \
        --dataset-name random --random-input-len 64 --random-output-len 12 --num-prompts 20 --request-rate 20 \
        --ready-check-timeout-sec 0 --goodput ttft:150 --percentile-metrics ttft,tpot,itl,e2el \
        --metric-percentiles 50,90,95,99 --save-result --save-detailed --result-dir . --result-filename vllm.json
}
run_guidellm() {
    HF_HUB_OFFLINE=1 with_simulator guidellm "$guidellm/bin/guidellm" run \
        --backend kind=openai_http,target=$url,model=tiny --profile kind=constant,rate=20 \
        --constraint kind=max_requests,count=20 --tokenizer "kind=huggingface_auto,model=$tokenizer" \
        --data kind=synthetic_text,prompt_tokens=64,output_tokens=12 \
        --output kind=json,path=guidellm.json --disable-progress
}
run_aiperf() {
    with_simulator aiperf "$aiperf/bin/aiperf" profile --model tiny --url $url --endpoint-type chat --streaming \
        --tokenizer . --request-rate 20 --request-count 20 --isl 64 --osl 12 --random-seed 1 \
        --goodput "time_to_first_token:150" --output-artifact-dir aiperf --ui simple --use-server-token-count
}
run_inference_perf() {
    sed "s#TOKENIZER#$tokenizer#; s#URL#$url#" "$here/inference-perf.yml" >"$out/inference-perf.yml"
    with_simulator inference-perf "$inference_perf/bin/inference-perf" --config_file inference-perf.yml
}
for tool in ${TOOLS:-vllm guidellm aiperf inference_perf}; do "run_$tool"; done
