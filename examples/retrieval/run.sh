#!/bin/sh
# Embeds the documents into a table of PostgreSQL, and answers the questions from them. See README.md.
#
#     DATABASE='postgresql://app:${PGPASSWORD}@127.0.0.1/shop' sh run.sh [OPTIONS OF THE SECOND JOB]
#
# SERVER has the encoders and the model that answers; OUT is the folder for the answers and the jobs' states.
set -eu
here=$(dirname "$0")
server=${SERVER:-127.0.0.1:8001}
out=${OUT:-.}

inflight batch run "$here/documents.jsonl" --id id --task embed --server "$server" \
    --template '{{ title }}. {{ text }}' --keep title --keep text --out "$DATABASE" --table docs --column embedding --job "$out/docs.job"

inflight batch run "$here/questions.jsonl" --id id --keep question --keep document --server "$server" \
    --retrieve "$DATABASE" --retrieve-table docs --retrieve-top-k 3 --template "@$here/prompt.txt" \
    --out "$out/answers.jsonl" "$@"
