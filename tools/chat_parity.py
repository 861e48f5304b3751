#!/usr/bin/env python3
"""Compares chat templates and the choice of tokens with the transformers library (needs torch and transformers).

    python3 tools/chat_parity.py record tests/data/chat.json    templates with what they give, settings with their probabilities, for tests/test_chat.c
    python3 tools/chat_parity.py templates tests/data/chat.json the templates anew (without torch)
    python3 tools/chat_parity.py check build/release/nebula-i   conversations as tokens, and texts with a repetition penalty, against the library

The templates were written for this purpose. They use what those of Llama 2, 3 and 3.1, Mistral, Qwen 2.5 and 3, Gemma and Zephyr use.
"""
import json
import os
import subprocess
import sys
import tempfile

import transformers as tf
from transformers.utils.chat_template_utils import _compile_jinja_template as compile_template

TEMPLATES = {
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "llama-2": """{% if messages[0]['role'] == 'system' %}
    {% set rest = messages[1:] %}
    {% set said = messages[0]['content'] %}
{% else %}
    {% set rest = messages %}{% set said = false %}
{% endif %}
{% for m in rest %}
    {% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate: user, assistant, user') }}
    {% endif %}
    {% if loop.index0 == 0 and said != false %}
        {% set content = '<<SYS>>\\n' + said + '\\n<</SYS>>\\n\\n' + m['content'] %}
    {% else %}
        {% set content = m['content'] %}
    {% endif %}
    {% if m['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- elif m['role'] == 'assistant' -%}
        {{ ' '  + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}""",
    "llama-3": """{{- bos_token }}
{%- for m in messages %}
    {%- set head = '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' %}
    {{- head + m['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "llama-3.1": """{{- bos_token }}
{#- What stands in front #}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined and messages | length > 99 %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message is taken out, so that it can be put where it belongs #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have these functions. To call one, answer with JSON." }}
    {{- 'Write {"name": function, "parameters": a table of names and values}.' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{#- Tools that stand in the first message of the user #}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no first message to put the tools into") }}
{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {{- "Answer with JSON that calls one of these functions, " }}
    {{- 'as {"name": function, "parameters": a table of names and values}.\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one call at a time") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {%- if builtin_tools is defined and tool_call.name in builtin_tools %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- "<|python_tag|>" + tool_call.name + ".call(" }}
            {%- for arg_name, arg_val in tool_call.arguments | items %}
                {{- arg_name + '="' + arg_val + '"' }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- endif %}
                {%- endfor %}
            {{- ")" }}
        {%- else  %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
            {{- '{"name": "' + tool_call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- tool_call.arguments | tojson }}
            {{- "}" }}
        {%- endif %}
        {%- if builtin_tools is defined %}
            {{- "<|eom_id|>" }}
        {%- else %}
            {{- "<|eot_id|>" }}
        {%- endif %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}

{#- User and assistant take turns, whatever tools say between them #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS][" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}
                    {{- ", " }}
                {%- else %}
                    {{- "]" }}
                {%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
            {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST]" + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST]" + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS][" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("the id of a call has nine characters") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- else %}
                {{- "]" + eos_token }}
            {%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS]{"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception("the id of a call has nine characters") }}
        {%- endif %}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("unknown role " ~ message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "qwen": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are here to help.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    "gemma": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- for message in messages %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}""",
    "odds": """{%- set a = [1, 2, 'x'] + [none] -%}
{%  for i in a  %}  {{ loop.index ~ '/' ~ loop.length }}{{ ',' if not loop.last }}
  {% else %}never{% endfor %}
{% for i in [] %}x{% else %}empty{% endfor +%}

{#- c -#}   {{ -3 + 2 * 4 // 3 % 5 }} {{ (1 < 2) and (2 >= 2) and not (3 != 3) }} {{ 'b' in 'abc' }} {{ 'k' not in {'k': 1} }}
{{ 'Ab' | upper }}{{ 'Ab'.lower() }}{{ missing | default('d') }}{{ '' | d('e', true) }}{{ ['p', 'q'] | join('-') }}
{{ [1, 2, 3, 4][1:-1] | length }}{{ ([1, 2, 3] | last) }}{{ ([1, 2, 3] | reverse | first) }}{{ 'é€x' | length }}{{ {'a': [1, 'b']} | tojson }}
{{ 'a-b-c'.replace('-', '+') }}{{ (messages | rejectattr('role', 'eq', 'user') | list) | length }}{{ messages[9] is undefined }}
{%+ if true %} kept{% endif %}

""",
}
TEMPLATES["macros"] = """{%- macro kind(spec, depth=0, name='') -%}
    {%- if spec.type == 'object' -%}
        {{ name }}{ {%- for k, v in spec.properties|dictsort -%}{{ kind(v, depth + 1, name=k) }}{{ ', ' if not loop.last }}{%- endfor -%} }
    {%- else -%}
        {{ name ~ ':' ~ spec.type ~ '@' ~ depth }}
    {%- endif -%}
{%- endmacro -%}
{%- macro star(x) %}<{{ x | upper }}>{% endmacro -%}
{%- set spec = {'type': 'object', 'properties': {'b': {'type': 'int'}, 'A': {'type': 'object', 'properties': {'c': {'type': 'str'}}}}} -%}
{{ kind(spec) }} {{ star('ab') + star(x='c') }}
{% set block %} kept {{ messages | length }}{% endset %}[{{ block }}]
{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(7, 1, -2) %}{{ i }}{{ ',' if not loop.last }}{% endfor %} {{ range(2) | list | length }}
{% for (k, v) in {'x': 1, 'y': none, 'z': 'w'}.items() if v is not none %}{{ loop.index ~ k ~ v ~ loop.revindex }};{% endfor %}
{% for k in {'p': 1, 'q': 2} %}{{ k }}{% endfor %}{% for a, b in [[1, 2], [3, 4]] %}{{ a * b }}|{% endfor %}
{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}never mind{% break %}{% endif %}{{ i }}{% endfor %}
{% for c in 'aé€' %}{{ c }}.{% endfor %}{{ 'aé€b'[1:-1] }}{{ 'abc'[-1] }}{{ 'abc'[::-1] }}{{ 'abc'[0] }}
{% raw %}{{ not this }} {% nor this %}{% endraw %}
{% if false %}{{ 1.5 | no_such_filter('%}') }}{{ '%}' ~ "}}" }}{% for a, b, c in x() recursive %}{% if a is no_such_test %}{% endif %}{% else %}{% endfor %}{% set y %}{% raw %}{% endif %}{% endraw %}{% endset %}{% else %}other{% endif %}
{% if true %}this{% elif 1.5 | no_such_filter %}{{ nothing.at.all() }}{% endif %}
{{ ['a', 'b', 'a'] | unique | join }}{{ [{'n': 'x'}, {'n': 'y'}] | map(attribute='n') | join('+') }}{{ ['a', 'b'] | map('upper') | list | tojson }}
{{ [1, 2, 3, 4] | select('odd') | list | length }}{{ [1, 'x'] | reject('string') | list | length }}{{ {'k': ['é', 1, true, none]} | tojson(indent=2) }}
{{ {'a': 1}.values() | list | first }}{{ {'a': 1}.keys() | list | first }}{{ 5 | string + none | string }}
{% if 'x' in messages[0] or messages[0].role in ['user', 'system'] %}in{% endif %}
"""
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells \"it\"", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}, "required": ["place"]}, "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}]
CALLS = [{"role": "user", "content": "How is Genève?"},
         {"role": "assistant", "tool_calls": [{"id": "abcdefghi", "function": {"name": "weather", "arguments": {"place": "Genève", "days": "2"}}}]},
         {"role": "tool", "tool_call_id": "abcdefghi", "content": "sunny <é>"},
         {"role": "assistant", "content": "Sunny. "}, {"role": "user", "content": "Thanks"}]
MESSAGES = [[{"role": "user", "content": "  Hello, who are you? "}],
            [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "Añb"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. "},
             {"role": "user", "content": "And {{ then }}?"}],
            [{"role": "user", "content": "<r>x</r>"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"},
             {"role": "assistant", "content": "c<think>d</think>e"}]]
SETTINGS = [dict(), dict(temperature=0.6), dict(temperature=1.7, top_k=5), dict(top_p=0.7), dict(temperature=1.3, top_k=20, top_p=0.8),
            dict(repetition=1.4), dict(temperature=0.8, repetition=0.7, top_p=0.9), dict(top_k=1)]


def rendered(template, messages, answer, **more):
    """The text, or the words with which the template refuses."""
    try:
        return dict(want=compile_template(template).render(messages=messages, add_generation_prompt=answer, bos_token="<s>", eos_token="</s>",
                                                           **{"tools": None, "documents": None, **more}))
    except Exception as e:
        return dict(refuses=str(e))


def probabilities(logits, seen, temperature=1.0, top_k=0, top_p=1.0, repetition=1.0):
    """As the library's processors and warpers, in its order, leave them."""
    import torch
    ids, scores = torch.tensor([seen]), torch.tensor([logits])
    scores = tf.RepetitionPenaltyLogitsProcessor(repetition)(ids, scores) if repetition != 1 else scores
    scores = tf.TemperatureLogitsWarper(temperature)(ids, scores) if temperature != 1 else scores
    scores = tf.TopKLogitsWarper(top_k)(ids, scores) if top_k else scores
    scores = tf.TopPLogitsWarper(top_p)(ids, scores) if top_p < 1 else scores
    return torch.softmax(scores[0].double(), -1).tolist()


def templates():
    """What each template gives; with `more` further variables."""
    out = [dict(name=n, template=t, messages=m, answer=a, **rendered(t, m, a)) for n, t in TEMPLATES.items() for m in MESSAGES for a in (True, False)]
    for name in ("llama-3.1", "mistral", "macros"):
        for more in (dict(tools=TOOLS), dict(tools=TOOLS, tools_in_user_message=False), dict(builtin_tools=["weather", "code_interpreter", "search"])):
            for m in (CALLS, [dict(role="system", content="Be brief.")] + CALLS[:3]):
                out.append(dict(name=name, template=TEMPLATES[name], messages=m, answer=True, more=more, **rendered(TEMPLATES[name], m, True, **more)))
    return out


def write(path, content):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(content, f, ensure_ascii=False, indent=0)


def record_templates(path):
    with open(path, encoding="utf-8") as f:
        there = json.load(f)
    write(path, {**there, "templates": templates()})


def record(path):
    import torch
    torch.manual_seed(2)
    logits = [round(float(x), 4) for x in torch.randn(31) * 1.5]
    seen = [3, 7, 7, 12, 30]
    write(path, dict(templates=templates(), logits=logits, seen=seen,
                     settings=[dict(s, probabilities=probabilities(logits, seen, **s)) for s in SETTINGS]))


def check_conversations(nebula):
    import hf_parity
    import torch
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>"]
    for name, template in TEMPLATES.items():
        if name in ("odds", "macros"):
            continue
        with tempfile.TemporaryDirectory() as d:
            t = hf_parity.tokenizer(d, 300)
            tok = tf.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<s>", eos_token="</s>", additional_special_tokens=special[2:])
            tok.chat_template = template
            torch.manual_seed(1)
            tf.LlamaForCausalLM(tf.LlamaConfig(vocab_size=len(tok), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                                               max_position_embeddings=2048)).save_pretrained(d + "/theirs")
            tok.save_pretrained(d + "/theirs")
            hf_parity.run(nebula, "import", d + "/theirs", d + "/ours")
            for words, system in ((["Hello, who are you?"], None), (["Añb 1 < 2"], "Be brief.")):
                if system and name == "gemma":
                    continue
                how = [nebula, "chat", d + "/ours", *words, "--ids"] + (["--system", system] if system else [])
                ours = [int(i) for i in subprocess.run(how, check=True, capture_output=True, text=True).stdout.split()]
                m = ([dict(role="system", content=system)] if system else []) + [dict(role="user", content=w) for w in words]
                theirs = tok.apply_chat_template(m, add_generation_prompt=True)
                theirs = theirs["input_ids"] if not isinstance(theirs, list) else theirs
                assert ours == theirs, (name, ours, theirs)
        print(f"{name}: the tokens of conversations are equal")


def check_repetition(nebula):
    import hf_parity
    import torch
    with tempfile.TemporaryDirectory() as d:
        size = hf_parity.tokenizer(d, 300).get_vocab_size()
    for name, model in hf_parity.families(size).items():
        with tempfile.TemporaryDirectory() as d:
            model.eval().save_pretrained(d + "/theirs")
            t = hf_parity.tokenizer(d + "/theirs", 300)
            hf_parity.run(nebula, "import", d + "/theirs", d + "/ours")
            for penalty in (1.2, 3.0):
                prompt = "compares import and export"
                how = [nebula, "generate", d + "/ours", prompt, "--temperature", "0", "--max-new", "40", "--repetition", str(penalty), "--scores"]
                rows = subprocess.run(how, check=True, capture_output=True, text=True).stdout.split("\n")
                ids = tf.AutoTokenizer.from_pretrained(d + "/theirs")(prompt).input_ids
                want = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0, repetition_penalty=penalty)
                want = want[0, len(ids):].tolist()
                want = want[:want.index(0)] if 0 in want else want
                assert [int(r.split()[0]) for r in rows if r] == want, (name, penalty)
        print(f"{name}: greedy texts with a repetition penalty are equal")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "record":
        record(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "templates":
        record_templates(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check_conversations(sys.argv[2])
        check_repetition(sys.argv[2])
    else:
        sys.exit(__doc__)
